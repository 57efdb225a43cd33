"""Compile a kernel's file by g++, with headers in place of CUDA's own instructions."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.cuda.compiler import INCLUDE_DIR, sources
from app.errors import UserError
from app.kernels.variant import Variant
from app.processes import how_it_ended

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
MISSING = "g++ is not installed: kernels run on the processor only where it is (Debian, Ubuntu: apt install g++)"
# Header of the kernels → what stands in its place.
IN_PLACE_OF = {
    "common.cuh": "host_cuda.h",
    "half.cuh": "host_half.h",
    "mma.cuh": "host_mma.h",
    "async_copy.cuh": "host_async.h",
    "host_program.h": "host_program.h",
}
# Headers of instructions that nothing stands in for.
HOPPERS = {"wgmma.cuh", "bulk_copy.cuh", "cluster.cuh", "dependent_launch.cuh", "warpgroup_product.cuh"}
# Without contraction: each operation is rounded by itself, as kernels say. Ubuntu's g++ checks that jumps stay
# on one stack, unless told not to: threads here have stacks of their own.
FLAGS = ("-std=c++17", "-O1", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")
# Shared memory whose size the launch gives, and its element type.
_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?((?:unsigned )?\w+) memory\[\];")
_SYSTEM = re.compile(r"^#include <.*>$", re.MULTILINE)
_ERROR = re.compile(r"^(?:\S*/)?([\w.]+:\d+):\d+: (?:fatal )?error: (.*)$", re.MULTILINE)


def why_not(row: Variant) -> str | None:
    """Return why the row cannot run on the processor, or None."""
    if row.needs_cublas:
        return "it multiplies in cuBLAS, a library for GPUs"
    if HOPPERS & sources(row.path).keys():
        return "it uses Hopper's warpgroup instructions, which nothing here stands in for"
    return None


def precompiled(folder: Path, flags: Sequence[str]) -> Path:
    """Return a header of all that the headers here include of the system's, compiled once for the folder.

    Reading it takes g++ half of the time that it takes for a kernel. ``-include`` it, with the same flags.
    """
    header = folder / "system.h"
    if COMPILER is not None and not header.exists():
        texts = ((HERE / own).read_text(encoding="utf-8") for own in IN_PLACE_OF.values())
        included = sorted({line for text in texts for line in _SYSTEM.findall(text)})
        folder.mkdir(parents=True, exist_ok=True)
        header.write_text("\n".join(["#pragma once", *included, ""]), encoding="utf-8")
        subprocess.run([COMPILER, *FLAGS, *flags, "-x", "c++-header", header.name], cwd=folder, capture_output=True)
    return header


def build(folder: Path, source: Path, main: str, defines: Mapping[str, str | int], flags: Sequence[str]) -> Path:
    """Compile ``main``, which includes the kernel's file, in a new folder; return the program or library.

    Raises UserError without a compiler, or with the first of its errors.
    """
    if COMPILER is None:
        raise UserError(MISSING)
    folder.mkdir(parents=True)
    texts = sources(source)
    texts["activations.cuh"] = (INCLUDE_DIR / "activations.cuh").read_text(encoding="utf-8")
    texts |= {name: (HERE / own).read_text(encoding="utf-8") for name, own in IN_PLACE_OF.items()}
    for name, text in texts.items():
        (folder / name).write_text(_SHARED.sub(r"\1 *&memory = *(\1 **)&host::shared;", text), encoding="utf-8")
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
