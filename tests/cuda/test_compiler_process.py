"""Test compiling: NVRTC's child processes, interrupts at any moment, and the cache of compiled kernels."""

import re
import signal
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.base.errors import UserError
from app.cuda import compiler
from app.cuda.compiler import (
    ARCHITECTURES,
    architecture_name,
    architecture_number,
    compile_kernel,
    read_with_includes,
    resource_report,
)

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.base.interrupts import INTERRUPTED
from app.cuda import compiler_process
from app.cuda.compiler import find_nvrtc, library_build_hash
from tests.support.shell import INTERRUPTIBLE, check_error, python, shell, started, user_error, wait_for

KERNEL = 'extern "C" __global__ void kernel(float *y) { y[threadIdx.x] = VALUE; }\n'
# Long for the compiler's front end, during which NVRTC replaces signal handlers.
LONG = (
    "".join(f"static __device__ float f{i}(float x) {{ return x * {i} + sqrtf(x); }}\n" for i in range(3000)) + KERNEL
)
# Compiles repeatedly, interrupted at random moments; each compilation must end in a result or in KeyboardInterrupt.
INTERRUPTED_OFTEN = """
import os, random, signal, sys, threading, time
from pathlib import Path
from app.cuda.compiler import compile_kernel, import_nvrtc
import_nvrtc()
before, interrupts, chance = signal.getsignal(signal.SIGINT), 0, random.Random(0)
for value in range(8):
    try:
        try:
            delay = chance.uniform(0, 0.15)
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
    """Write a kernel file and use an empty cache; return the file's path."""
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "kernel.cu"
    path.write_text(KERNEL, encoding="utf-8")
    return path


def test_interrupts_at_random_moments(kernel: Path) -> None:
    """NVRTC runs in a child process, because its signal handlers would end or crash the program."""
    kernel.write_text(LONG, encoding="utf-8")
    done = python(INTERRUPTED_OFTEN, kernel, preexec_fn=INTERRUPTIBLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "8 interrupts\n"


def test_an_interrupted_precompile_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    process = started(tmp_path, "precompile", "--arch", "sm_90a", "--all")
    try:
        wait_for(lambda: list(tmp_path.glob("cache/kernels/*")))  # kernels compile
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    check_error(process.returncode, out, err, "interrupted")
    assert err == f"{INTERRUPTED}\n"
    assert not list(tmp_path.rglob("*.part"))


def test_threads_compile_in_separate_processes(kernel: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda value: compiler.compile_kernel(kernel, {"VALUE": value}, "sm_80"), range(6)))
    assert len(set(found)) == 6 and all(cubin.startswith(b"\x7fELF") for cubin in found)
    assert compiler.compile_kernel(kernel, {"VALUE": 0}, "sm_90a") not in found


def test_a_killed_compiler_is_replaced(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_compiler_ends_silently_with_its_parent() -> None:
    """The parent may be killed, as a cluster's worker is; users would not understand the child's lines."""
    code = (
        "import marshal, os, sys\n"
        "from app.cuda import compiler_process\n"
        "child = compiler_process.Child(compiler_process.__name__, sys.argv[1], one_thread=False)\n"
        "child.receive = lambda _: (print(child._process.pid, flush=True), os._exit(0))\n"
        "child.send_request(marshal.dumps(('kernel.cu', sys.argv[2], [], ('--gpu-architecture=sm_80',))))"
    )
    done = python(code, find_nvrtc().path, KERNEL.replace("VALUE", "1"))
    assert (done.returncode, done.stderr) == (0, "")
    wait_for(lambda: not Path(f"/proc/{done.stdout.strip()}").exists())


def write_elf(path: Path, build: bytes, size: int = 400) -> str:
    """Write a minimal ELF file of ``size`` bytes with a note that contains ``build``; return its path."""
    header = bytearray(64)
    struct.pack_into("<Q", header, 0x20, 64)
    struct.pack_into("<2H", header, 0x36, 56, 2)
    load = struct.pack("<IIQQQQQQ", 1, 0, 0, 0, 0, size, size, 4)
    note = struct.pack("<IIQQQQQQ", 4, 0, 200, 0, 0, len(build), len(build), 4)
    content = (bytes(header) + load + note).ljust(200, b"\0") + build
    path.write_bytes(content.ljust(size, b"\0"))
    return str(path)


def test_the_build_hash_identifies_the_build(tmp_path: Path) -> None:
    """The hash depends on the linker's build ID and the file's size, not on the path."""
    first = library_build_hash(write_elf(tmp_path / "1", b"build 1"))
    others = [write_elf(tmp_path / "2", b"build 2"), write_elf(tmp_path / "3", b"build 1", size=401)]
    assert len({first, *map(library_build_hash, others)}) == 3
    assert library_build_hash(write_elf(tmp_path / "moved", b"build 1")) == first


def test_find_nvrtc_returns_the_loaded_library() -> None:
    library = find_nvrtc()
    assert Path(library.path).name.startswith("libnvrtc.so") and Path(library.path).is_absolute()
    assert library.version == compiler.import_nvrtc().getVersion() and library.build == library_build_hash(library.path)


# --- the cache


def test_architectures_have_names_and_numbers() -> None:
    cards = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
    assert tuple(architecture_name(*card) for card in cards) == ARCHITECTURES
    assert [architecture_number(name) for name in ARCHITECTURES] == [75, 80, 86, 89, 90, 100, 120]


# A small kernel that includes a header, which includes another one.
TOY = {
    "toy.cu": '#include "outer.cuh"\nextern "C" __global__ void toy(float *y) { y[threadIdx.x] = VALUE + INNER; }\n',
    "outer.cuh": '#pragma once\n#  include "inner.cuh"\n',
    "inner.cuh": "#pragma once\n#define INNER 1\n",
    "broken.cu": 'extern "C" __global__ void broken() { int x = nonsense; }\n',
}


@pytest.fixture
def toy_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files of TOY to a folder, beside an empty cache; return the folder."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name, text in TOY.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def _build(toy_folder: Path, value: int = 1, arch: str = "sm_80", *, debug: bool = False) -> bytes:
    return compile_kernel(toy_folder / "toy.cu", {"VALUE": value}, arch, debug=debug)


def _list_cache(toy_folder: Path) -> list[Path]:
    """Return all files in the cache, including hidden ones."""
    return sorted((toy_folder.parent / "cache" / "kernels").iterdir())


def _fail_to_compile(*_: object) -> None:
    raise AssertionError("compiled where the cache should have served")


def test_the_order_of_constants_does_not_matter(toy_folder: Path) -> None:
    first = compile_kernel(toy_folder / "toy.cu", {"VALUE": 1, "OTHER": 2}, "sm_80")
    assert compile_kernel(toy_folder / "toy.cu", {"OTHER": 2, "VALUE": 1}, "sm_80") == first
    assert len(_list_cache(toy_folder)) == 1


@pytest.mark.parametrize("change", ["define", "arch", "debug", "toy.cu", "outer.cuh", "inner.cuh", "compiler"])
def test_every_compiler_input_changes_the_key(change: str, toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_compile", lambda *_: (b"machine code", ""))
    _build(toy_folder)
    _build(toy_folder)
    assert len(_list_cache(toy_folder)) == 1
    if change in TOY:
        with (toy_folder / change).open("a", encoding="utf-8") as file:
            file.write("// changed\n")
    if change == "compiler":
        monkeypatch.setattr(compiler, "library_build_hash", lambda _: "a build of the same version")
    value, arch = 2 if change == "define" else 1, "sm_90a" if change == "arch" else "sm_80"
    _build(toy_folder, value, arch, debug=change == "debug")
    assert len(_list_cache(toy_folder)) == 2


@pytest.mark.parametrize("damage", ["flipped", "truncated", "longer", "empty", "other"])
def test_a_damaged_cache_file_is_compiled_again(damage: str, toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin = _build(toy_folder)
    (path,) = _list_cache(toy_folder)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-100] ^= 1
    damaged = {"flipped": bytes(flipped), "truncated": good[:-1], "longer": good + b"\0", "empty": b"", "other": cubin}
    path.write_bytes(damaged[damage])
    assert _build(toy_folder) == cubin
    assert path.read_bytes() == good
    monkeypatch.setattr(compiler, "_compile", _fail_to_compile)
    assert _build(toy_folder) == cubin


def test_a_compile_error_gives_file_options_and_log(toy_folder: Path) -> None:
    with pytest.raises(RuntimeError) as caught:
        compile_kernel(toy_folder / "broken.cu", {"TILE": 16}, "sm_80")
    first, log = str(caught.value).split("\n", 1)
    assert all(part in first for part in ("broken.cu", "-DTILE=16", "--gpu-architecture=sm_80"))
    assert "nonsense" in log and "broken.cu" in log
    assert not (toy_folder.parent / "cache").exists()


def test_a_missing_nvrtc_is_a_user_error(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_missing_library() -> None:
        raise RuntimeError("CuPy failed to load libnvrtc.so.12:\nOSError: no such file")

    monkeypatch.setattr(compiler.import_nvrtc(), "getVersion", raise_missing_library)
    assert re.search(r"NVRTC.*libnvrtc.*pip install", user_error(lambda: _build(toy_folder)))


def test_without_cupy_the_error_names_cupy(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", None)
    with pytest.raises(UserError, match=r"NVRTC.*: pip install cupy-cuda12x$"):
        compiler.import_nvrtc()


def test_a_home_that_cannot_be_written_names_cupy_s_variable(tmp_path: Path) -> None:
    words = ("precompile", "--network", "mlp", "--arch", "sm_90a")
    homeless = {"HOME": "/dev/null", "LENET_CACHE_DIR": str(tmp_path)}
    done = shell(*words, env=homeless)
    hint = "set CUPY_CACHE_DIR to a folder of your own"
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and f"/dev/null/.cupy': {hint}" in done.stderr
    assert shell(*words, env={**homeless, "CUPY_CACHE_DIR": str(tmp_path / "cupy")}).returncode == 0


def test_kernels_elsewhere_may_include_our_headers(toy_folder: Path) -> None:
    """A header beside the kernel replaces ours of the same name."""
    (toy_folder / "user.cu").write_text('#include "common.cuh"\n#include "inner.cuh"\n', encoding="utf-8")
    found = read_with_includes(toy_folder / "user.cu")
    assert found["common.cuh"] == (compiler.INCLUDE_DIR / "common.cuh").read_text(encoding="utf-8")
    assert found["inner.cuh"] == TOY["inner.cuh"] and "half.cuh" in found


def test_resource_report_has_registers_and_spills(toy_folder: Path) -> None:
    report = resource_report(toy_folder / "toy.cu", {"VALUE": 1}, "sm_80")
    assert "registers" in report and "spill" in report and "toy" in report
    assert not (toy_folder.parent / "cache").exists()


def test_debug_code_differs(toy_folder: Path) -> None:
    assert _build(toy_folder, debug=True) != _build(toy_folder)
