"""Compile a kernel's file with g++, with C++ in place of its PTX functions, and run it in a separate process.

The process keeps arrays between guard pages, and checks every index into an array of declared size.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.processes import describe_exit_code
from app.cuda.compiler import INCLUDE_DIR, read_with_includes
from app.kernels.plain_problems import ITEMSIZE, Argument
from app.kernels.problems import Problem
from app.kernels.variant import Parameters, Variant
from app.lab.checking.cases import Fault
from app.ladder.emulation.main_function import write_main_function

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
MISSING = "g++ is not installed: kernels run on the processor only where it is (Debian, Ubuntu: apt install g++)"
# Header of the kernels → the header here with C++ versions of its PTX functions.
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
# Without contraction each operation is rounded separately. Ubuntu's g++ would reject jumps to another thread's stack.
FLAGS = ["-std=c++17", "-O1", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-fmax-errors=9"]
FLAGS += ["-fuse-ld=gold"] if shutil.which("ld.gold") else []  # it takes a third of the time to link
_ALIGNED = r"(?:(?:__align__|alignas)\((?:[^()]|\([^()]*\))*\) +)?"
# Declarations of dynamic shared memory, and of one variable in shared memory; the groups are type and name.
_SHARED = re.compile(
    rf"{_ALIGNED}(?:extern +{_ALIGNED}__shared__|__shared__ +extern) +{_ALIGNED}((?:(?:unsigned|volatile) +)*\w+) +"
    r"(\w+) *\[ *\] *;"
)
_VARIABLE = re.compile(r"__shared__ +((?:unsigned +)?\w+) +(\w+);")
_PTX = re.compile(r"\basm\b")
# A function of this folder's headers with a body of several lines, unless it is a template.
_FUNCTION = re.compile(r'(?<!>\n)^((?:extern "C" )?)inline ([^\n;]+\)) (\{\n.*?^\}\n)', re.MULTILINE | re.DOTALL)
DECLARED, DEFINED = r"\1\2;\n", r"\1[[gnu::used]] inline \2 \3"
AS_WRITTEN = r'\1[[gnu::no_sanitize("kernel-address")]] inline \2 \3'
_MACRO = re.compile(r"[A-Z][A-Z0-9_]*\(.*\)$")  # a macro call between declarations, which defines PTX functions
_ERROR = re.compile(r"^(?:\S*/)?([\w.+-]+:\d+):\d+: (?:fatal )?error: (.*)$", re.MULTILINE)
SECONDS, RATE = 3, 1e6  # limit of a run: seconds of CPU time, plus one for every RATE operations and threads
WAIT = 20  # a run that waits without computing ends after so many times its limit
# Limits of the compiler: CPU time, and KB of memory. The shell sets them also for the processes that g++ starts.
COMPILE_SECONDS = 60
LIMITED = ("/bin/sh", "-c", 'ulimit -S -t "$0" && ulimit -v 8000000 && exec "$@"')
SHARED_FROM = 4  # kernels: for fewer, compiling the common part first takes longer
_COMMON_PART_LOCK = Lock()  # only one thread compiles the common part
ENDLESS = "does not come to an end"  # the message in host_program.h
# Debug information for line numbers (addr2line confuses files in DWARF 5), and index checks. (-fsanitize=address would
# lose track of threads' stacks.)
CHECKED = ["-gdwarf-4", "-g1", "-fno-omit-frame-pointer", "-no-pie"]
CHECKED += ["-fsanitize=bounds,alignment", "-fno-sanitize-recover=bounds,alignment"]
# The program calls a function of its own before each access to memory outside of the stack, for CHECKED before stores.
CALLING = ["-fsanitize=kernel-address", "--param=asan-instrumentation-with-call-threshold=0"]
CALLING += ["--param=asan-stack=0", "--param=asan-globals=0"]
CHECKED += [*CALLING, "--param=asan-instrument-reads=0"]
_MISUSE = re.compile(r"^(?:\S*/)?([\w.+-]+:\d+):\d+: runtime error: (.*)$", re.MULTILINE)
_FAULT = re.compile(r"^FAULT (.*)$", re.MULTILINE)
_THREAD = re.compile(r"^THREAD (.*)$", re.MULTILINE)
_CALLERS = re.compile(r"^AT((?: [0-9a-f]+)*)$", re.MULTILINE)


class CompileError(UserError):
    """The compiler for the processor, g++, refuses a kernel."""


def why_not_on_cpu(row: Variant) -> str | None:
    """Return the reason why the row's kernel cannot be emulated on the CPU, or None if it can."""
    has_ptx = "it has PTX; the processor knows the functions of app/kernels/include in place of it"
    return "it multiplies in cuBLAS, a library for GPUs" if row.needs_cublas else has_ptx if row.has_ptx else None


@cache
def replace_ptx(name: str, text: str) -> str:
    """Return the text of a kernel's file or of a header, with empty lines in place of its PTX functions and types.

    The text includes the header that defines them in C++; shared arrays refer to the current block's memory, and shared
    variables to a place that the compiler does not know, so that it does not leave out ``before_store``.
    """
    lines: list[str] = []
    block: list[str] = []
    depth = 0
    text = _SHARED.sub(r"\1 *&\2 = *(\1 **)&host::shared;", text.replace("__noinline__", ""))
    text = _VARIABLE.sub(r"__shared__ \1 \2_here; \1 &\2 = *host::unknown(&\2_here);", text)
    for line in text.splitlines():
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


def emulation_headers() -> dict[str, str]:
    """Return file name → text of each C++ header in this folder."""
    return {path.name: path.read_text(encoding="utf-8") for path in HERE.glob("*.h")}


def build_program(
    folder: Path, source: Path, main: str, defines: Mapping[str, str | int], flags: Sequence[str], shared: bool = True
) -> Path:
    """Compile ``main``, C++ text that includes the kernel's file, in a new folder; return the program or library.

    shared: whether to compile the part that all kernels have in common separately, once in this process.
    Raises UserError without a compiler, or with the compiler's first error.
    """
    if COMPILER is None:
        raise UserError(MISSING)
    words = [*flags, "main.cpp", "-o", "kernel"]
    if shared:
        with _COMMON_PART_LOCK:
            there = _compile_common_part(COMPILER, tuple(flags)).name
        words += ["-include", f"{there}/system.h", f"{there}/runtime.o"]
    folder.mkdir(parents=True)
    _write_sources(folder, source, DECLARED if shared else AS_WRITTEN)
    # Not by -D: g++ rejects a precompiled header in which a macro's name occurs, such as C.
    constants = "".join(f"#define {key} {value}\n" for key, value in sorted(defines.items()))
    (folder / "main.cpp").write_text(constants + main, encoding="utf-8")
    _run_compiler(folder, source.name, words)
    return folder / "kernel"


@cache
def _compile_common_part(compiler: str, flags: Sequence[str]) -> TemporaryDirectory[str]:
    """Compile the part that all kernels have in common, two thirds of a kernel's compile time; return its folder.

    The folder contains system.h, a precompiled header of the system's headers, and runtime.o, the functions of the
    headers of this package.
    """
    folder = Path((made := TemporaryDirectory()).name)
    _write_sources(folder, INCLUDE_DIR / "common.cuh", DEFINED)
    included = {
        line for text in emulation_headers().values() for line in re.findall(r"^#include <.*>$", text, re.MULTILINE)
    }
    (folder / "system.h").write_text("\n".join(["#pragma once", *sorted(included), ""]), encoding="utf-8")
    # The emulated tensor cores take most of a run, so this part is optimised. A pragma does this, because with another
    # -O option g++ would reject the precompiled header.
    headers_here = "".join(f'#include "{name}"\n' for name in (*IN_PLACE_OF, "host_program.h"))
    (folder / "runtime.cpp").write_text(f'#pragma GCC optimize ("O3")\n{headers_here}', encoding="utf-8")
    _run_compiler(folder, "system.h", (*flags, "-x", "c++-header", "system.h"))
    uncalled = "-fno-sanitize=kernel-address"  # its accesses are not a kernel's
    _run_compiler(folder, "runtime.cpp", (*flags, uncalled, "-include", "system.h", "-c", "runtime.cpp"))
    return made


def _write_sources(folder: Path, source: Path, functions: str) -> None:
    """Write into ``folder`` the kernel's file and its headers, without PTX, and the headers that emulate them.

    functions: AS_WRITTEN, DECLARED or DEFINED, the form of the emulating headers' inline functions.
    """
    texts = {name: (INCLUDE_DIR / name).read_text(encoding="utf-8") for name in IN_PLACE_OF}
    texts |= read_with_includes(INCLUDE_DIR / "common.cuh") | read_with_includes(source)
    texts = {name: replace_ptx(name, text) for name, text in texts.items()}
    texts |= {name: _FUNCTION.sub(functions, text) for name, text in emulation_headers().items()}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _run_compiler(folder: Path, name: str, words: Sequence[str]) -> None:
    """Run g++ in the folder with the arguments ``words``. name: the kernel's. Raises CompileError, the first error."""
    command = [*LIMITED, str(COMPILE_SECONDS), str(COMPILER), *FLAGS, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    if done.returncode:
        if "CPU time limit" in done.stderr:
            raise CompileError(f"{name} does not compile for the processor: g++ takes more than {COMPILE_SECONDS} s")
        found = _ERROR.search(done.stderr)
        said = [line for line in done.stderr.splitlines() if "error" in line or "cannot" in line]
        reason = f"{found[1]}: {found[2]}" if found else next(iter(said), f"g++ {describe_exit_code(done.returncode)}")
        raise CompileError(f"{name} does not compile for the processor: {reason}")


class BuiltKernel(Frozen):
    """A program that emulates a kernel on one problem and number of images.

    source: name of the kernel's file. outputs: arguments that the kernel writes. seconds: limit of a run's CPU time.
    """

    program: Path
    source: str
    outputs: Sequence[Argument]
    images: int
    seconds: int

    def run(self, *inputs: Sequence[np.ndarray | None], low: bool) -> list[np.ndarray]:
        """Run the kernel once for each of ``inputs``, in one process; return the flat outputs of all runs, in order.

        inputs: x and the packed parameters of each run. Memory begins as bytes 0xFF; between runs only the inputs are
        written anew. low: whether arrays begin at a guard page instead of ending at one. Raises Fault.
        """
        done, found, at = self.execute(*inputs, low=low), [], 0
        for output in (*self.outputs,) * len(inputs):
            count = output.per_image * self.images
            if at + count * ITEMSIZE[output.dtype] > len(done.stdout):
                raise Fault("it ends its program before all its blocks have run")
            found.append(np.frombuffer(done.stdout, output.dtype, count, at))
            at += found[-1].nbytes
        return found

    def execute(self, *inputs: Sequence[np.ndarray | None], low: bool) -> subprocess.CompletedProcess[bytes]:
        """Run the program; return the finished process with its output. inputs, low: as for ``run``. Raises Fault."""
        runs, arrays = len(inputs), (array for given in inputs for array in given if array is not None)
        given = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        try:
            done = subprocess.run(
                [self.program, str(int(low)), str(runs * self.seconds), str(runs)],
                input=given,
                capture_output=True,
                env={"UBSAN_OPTIONS": "print_stacktrace=0"},
                timeout=WAIT * runs * self.seconds,
            )
        except subprocess.TimeoutExpired:
            raise Fault(f"it {ENDLESS}: its program waits for something") from None
        if done.returncode:
            raise Fault(self._describe_failed_run(done.stderr.decode(errors="replace"), done.returncode))
        return done

    def _describe_failed_run(self, said: str, code: int) -> str:
        misuse, fault = _MISUSE.search(said), _FAULT.search(said)
        what = f"it {fault[1]}" if fault else misuse[2] if misuse else f"its program {describe_exit_code(code)}"
        place = misuse[1] if misuse else self._find_source_line(_CALLERS.search(said))
        thread = _THREAD.search(said)
        return (f"{place}: " if place else "") + what + (f" (thread {thread[1]})" if thread else "")

    def _find_source_line(self, callers: re.Match[str] | None) -> str | None:
        """Return as text the first line of the kernel's own file in the call stack ``callers``; None if it has none."""
        lookup = shutil.which("addr2line")
        if callers is None or not callers[1] or lookup is None:
            return None
        done = subprocess.run([lookup, "-i", "-e", self.program, *callers[1].split()], capture_output=True, text=True)
        lines = (line.partition(" (")[0].rpartition("/")[2] for line in done.stdout.splitlines())
        return next((line for line in lines if line.partition(":")[0] == self.source), None)


def build_variant(
    row: Variant,
    problem: Problem,
    parameters: Parameters,
    images: int,
    folder: Path,
    shared: bool = True,
    counting: Sequence[str] = (),
) -> BuiltKernel:
    """Compile the emulation of the row's kernel for the problem in a new folder. Raises UserError if that fails.

    shared: reuse compiled common parts. counting: flags to count loads instead of checking accesses (host_counts.h).
    """
    config = row.launch_config(problem, parameters)
    headers = ("common.cuh", row.source, "host_program.h", *(["host_counts.h"] if counting else []))
    main = write_main_function(row, problem, config, images, headers)
    path = build_program(folder, row.path, main, config.defines, counting or CHECKED, shared and not counting)
    outputs = [argument for argument in problem.arguments()[1:] if argument.per_image]
    threads = sum(prod(launch.grid(images)) * launch.threads for launch in config.launches)
    return BuiltKernel(path, row.source, outputs, images, SECONDS + int((images * problem.flops + threads) / RATE))
