"""Compile a kernel's file by g++, with C++ in place of its functions that are PTX."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.base.errors import UserError
from app.base.processes import how_it_ended
from app.cuda.compiler import INCLUDE_DIR, sources
from app.kernels.variant import Grid, KernelLaunch, Variant

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
MISSING = "g++ is not installed: kernels run on the processor only where it is (Debian, Ubuntu: apt install g++)"
# Header of the kernels → the header here that has its functions of PTX in C++.
IN_PLACE_OF = {
    "common.cuh": "host_cuda.h",
    "half.cuh": "host_half.h",
    "mma.cuh": "host_mma.h",
    "async_copy.cuh": "host_async.h",
    "bulk_copy.cuh": "host_bulk.h",
    "cluster.cuh": "host_cluster.h",
    "dependent_launch.cuh": "host_cluster.h",
    "wgmma.cuh": "host_wgmma.h",
}
# Without contraction: each operation is rounded by itself, as kernels say. Ubuntu's g++ checks that jumps stay
# on one stack, unless told not to: threads here have stacks of their own.
FLAGS = ("-std=c++17", "-O1", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")
# Shared memory whose size the launch gives, and its element type.
_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?((?:unsigned )?\w+) memory\[\];")
_PTX = re.compile(r"\basm\b")
_MACRO = re.compile(r"[A-Z][A-Z0-9_]*\(.*\)$")  # between declarations, it makes functions of PTX
_ERROR = re.compile(r"^(?:\S*/)?([\w.]+:\d+):\d+: (?:fatal )?error: (.*)$", re.MULTILINE)


def why_not(row: Variant) -> str | None:
    """Return why the row cannot run on the processor, or None."""
    if row.needs_cublas:
        return "it multiplies in cuBLAS, a library for GPUs"
    return None


def for_the_processor(name: str, text: str) -> str:
    """Return a kernel's file, or a header's, without its functions and types of PTX, whose lines are left empty.

    In their place stands the header here that has them, and an array in shared memory becomes the current block's.
    """
    lines: list[str] = []
    block: list[str] = []
    depth = 0
    for line in _SHARED.sub(r"\1 *&memory = *(\1 **)&host::shared;", text).splitlines():
        if not block and (not line or line[0] in "#/ }"):  # between declarations
            lines.append(line)
            continue
        if not block and _MACRO.match(line):
            lines.append("")
            continue
        block.append(line)
        depth += line.count("{") - line.count("}")
        if depth == 0 and line.partition("//")[0].rstrip().endswith(("}", ";")):
            is_ptx = any(_PTX.search(part) for part in block)
            lines += [""] * len(block) if is_ptx else block
            block = []
    lines += block
    host = f'#include "{IN_PLACE_OF[name]}"\n#line 1 "{name}"\n' if name in IN_PLACE_OF else ""
    return host + "\n".join([*lines, ""])


def headers() -> dict[str, str]:
    """Return the headers here by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in HERE.glob("*.h")}


def grid_of(launch: KernelLaunch, images: int) -> Grid:
    """Return the launch's blocks along each axis, on a card of two multiprocessors: persistent ones are two at most."""
    x, *others = launch.grid(images)
    return (min(x, 2) if launch.persistent else x, *others)  # type: ignore[return-value]


def build(folder: Path, source: Path, main: str, defines: Mapping[str, str | int], flags: Sequence[str]) -> Path:
    """Compile ``main``, which includes the kernel's file, in a new folder; return the program or library.

    Raises UserError without a compiler, or with the first of its errors.
    """
    if COMPILER is None:
        raise UserError(MISSING)
    folder.mkdir(parents=True)
    texts = {name: (INCLUDE_DIR / name).read_text(encoding="utf-8") for name in IN_PLACE_OF}
    texts |= sources(INCLUDE_DIR / "common.cuh") | sources(source)
    texts = {name: for_the_processor(name, text) for name, text in texts.items()} | headers()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    # In the text, not by -D: g++ takes no compiled header where a macro has a name that occurs in it, such as C.
    constants = "".join(f"#define {key} {value}\n" for key, value in sorted(defines.items()))
    (folder / "main.cpp").write_text(constants + main, encoding="utf-8")
    made = folder / "kernel"
    command = [COMPILER, *FLAGS, *flags, "main.cpp", "-o", made.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        found = _ERROR.search(done.stderr)
        said = [line for line in done.stderr.splitlines() if "error" in line or "cannot" in line]
        reason = f"{found[1]}: {found[2]}" if found else next(iter(said), f"g++ {how_it_ended(done.returncode)}")
        raise UserError(f"{source.name} does not compile for the processor: {reason}")
    return made
