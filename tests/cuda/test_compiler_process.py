"""Test the compiler's processes: this program handles Ctrl-C at any moment, and their results are NVRTC's."""

import signal
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.base.errors import UserError
from app.base.interrupts import INTERRUPTED
from app.cuda import compiler, compiler_process
from app.cuda.compiler import build_hash, find_library
from tests.support.shell import INTERRUPTIBLE, check_error, python, started, wait_for

KERNEL = 'extern "C" __global__ void kernel(float *y) { y[threadIdx.x] = VALUE; }\n'
# Most of the time goes to the front end, within which NVRTC handles signals.
LONG = (
    "".join(f"static __device__ float f{i}(float x) {{ return x * {i} + sqrtf(x); }}\n" for i in range(6000)) + KERNEL
)
# Compiles again and again, interrupted at moments that differ; every compilation ends in its result or the interrupt.
INTERRUPTED_OFTEN = """
import os, random, signal, sys, threading, time
from pathlib import Path
from app.cuda.compiler import compile_kernel, import_nvrtc
import_nvrtc()
before, interrupts, chance = signal.getsignal(signal.SIGINT), 0, random.Random(0)
for value in range(15):
    try:
        try:
            delay = chance.uniform(0, 0.3)
            shot = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            shot.start()
            compile_kernel(Path(sys.argv[1]), {"VALUE": value}, "sm_80")
        finally:
            shot.join()
            time.sleep(0.01)  # an interrupt after the compilation comes here
    except KeyboardInterrupt:
        interrupts += 1
assert signal.getsignal(signal.SIGINT) is before
print(interrupts, "interrupts")
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel, and an empty cache."""
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "kernel.cu"
    path.write_text(KERNEL, encoding="utf-8")
    return path


def test_interrupts_at_many_moments(kernel: Path) -> None:
    """NVRTC's own handlers ended the process, with exit code 4 or in a crash."""
    kernel.write_text(LONG, encoding="utf-8")
    done = python(INTERRUPTED_OFTEN, kernel, preexec_fn=INTERRUPTIBLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "15 interrupts\n"


def test_precompile_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    process = started(tmp_path, "precompile", "--arch", "sm_90a", "--all")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=1.5)  # until kernels compile
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    check_error(process.returncode, out, err, "interrupted")
    assert err == f"{INTERRUPTED}\n"
    assert not list(tmp_path.rglob("*.part"))


def test_threads_have_a_process_each(kernel: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda value: compiler.compile_kernel(kernel, {"VALUE": value}, "sm_80"), range(6)))
    assert len(set(found)) == 6 and all(cubin.startswith(b"\x7fELF") for cubin in found)
    assert compiler.compile_kernel(kernel, {"VALUE": 0}, "sm_90a") not in found


def test_a_compiler_that_died_is_replaced(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_process, "_idle", [])
    compiler.compile_kernel(kernel, {"VALUE": 1}, "sm_80")
    idle = compiler_process._idle[0]._process
    idle.kill()
    idle.wait()
    with pytest.raises(UserError, match=r"the compiler was killed at kernel\.cu"):
        compiler.compile_kernel(kernel, {"VALUE": 2}, "sm_80")
    assert compiler_process._idle == []
    assert compiler.compile_kernel(kernel, {"VALUE": 2}, "sm_80").startswith(b"\x7fELF")
    compiler_process._terminate_idle_compilers()


def test_a_compiler_says_nothing_when_the_asking_process_is_killed() -> None:
    """As when a worker of a cluster is: users would see lines that mean nothing to them."""
    code = (
        "import marshal, os, sys\n"
        "from app.cuda import compiler_process\n"
        "child = compiler_process.Child(compiler_process.__name__, sys.argv[1], one_thread=False)\n"
        "child.receive = lambda _: (print(child._process.pid, flush=True), os._exit(0))\n"
        "child.ask(marshal.dumps(('kernel.cu', sys.argv[2], [], ('--gpu-architecture=sm_80',))))"
    )
    done = python(code, find_library().path, KERNEL.replace("VALUE", "1"))
    assert (done.returncode, done.stderr) == (0, "")
    wait_for(lambda: not Path(f"/proc/{done.stdout.strip()}").exists())


def elf(path: Path, build: bytes, size: int = 400) -> str:
    """The least that is an ELF file with a note, of so many bytes."""
    header = bytearray(64)
    struct.pack_into("<Q", header, 0x20, 64)
    struct.pack_into("<2H", header, 0x36, 56, 2)
    load = struct.pack("<IIQQQQQQ", 1, 0, 0, 0, 0, size, size, 4)
    note = struct.pack("<IIQQQQQQ", 4, 0, 200, 0, 0, len(build), len(build), 4)
    content = (bytes(header) + load + note).ljust(200, b"\0") + build
    path.write_bytes(content.ljust(size, b"\0"))
    return str(path)


def test_builds_of_one_version_are_told_apart(tmp_path: Path) -> None:
    """By the linker's build ID, or the size; not by the place."""
    first = build_hash(elf(tmp_path / "1", b"build 1"))
    others = [elf(tmp_path / "2", b"build 2"), elf(tmp_path / "3", b"build 1", size=401)]
    assert len({first, *map(build_hash, others)}) == 3
    assert build_hash(elf(tmp_path / "moved", b"build 1")) == first


def test_the_library_is_the_one_that_compiles() -> None:
    library = find_library()
    assert Path(library.path).name.startswith("libnvrtc.so") and Path(library.path).is_absolute()
    assert library.version == compiler.import_nvrtc().getVersion() and library.build == build_hash(library.path)
