"""Test the compiler's cache: nothing is compiled twice, and every input of a compilation is part of its key."""

import sys
from pathlib import Path

import pytest

from app.base.errors import UserError
from app.cuda import compiler
from app.cuda.compiler import (
    ARCHITECTURES,
    architecture,
    architecture_number,
    compile_kernel,
    read_with_includes,
    resource_report,
)


def test_architectures_have_names_and_numbers() -> None:
    cards = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
    assert tuple(architecture(*card) for card in cards) == ARCHITECTURES
    assert [architecture_number(name) for name in ARCHITECTURES] == [75, 80, 86, 89, 90, 100, 120]


# A kernel of three lines that includes a header that includes another.
TOY = {
    "toy.cu": '#include "outer.cuh"\nextern "C" __global__ void toy(float *y) { y[threadIdx.x] = VALUE + INNER; }\n',
    "outer.cuh": '#pragma once\n#  include "inner.cuh"\n',
    "inner.cuh": "#pragma once\n#define INNER 1\n",
    "broken.cu": 'extern "C" __global__ void broken() { int x = nonsense; }\n',
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of toy kernels in place of ours, and an empty cache beside it. Returns the folder for kernels."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name, text in TOY.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def _build(toy: Path, value: int = 1, arch: str = "sm_80", *, debug: bool = False) -> bytes:
    return compile_kernel(toy / "toy.cu", {"VALUE": value}, arch, debug=debug)


def _cached(toy: Path) -> list[Path]:
    """Everything in the cache, hidden files included."""
    return sorted((toy.parent / "cache" / "kernels").iterdir())


def _no_compiler(*_: object) -> None:
    raise AssertionError("compiled where the cache should have served")


def test_sources_follow_includes(toy: Path) -> None:
    assert read_with_includes(toy / "toy.cu") == {name: TOY[name] for name in ("toy.cu", "outer.cuh", "inner.cuh")}


def test_the_order_of_constants_does_not_matter(toy: Path) -> None:
    first = compile_kernel(toy / "toy.cu", {"VALUE": 1, "OTHER": 2}, "sm_80")
    assert compile_kernel(toy / "toy.cu", {"OTHER": 2, "VALUE": 1}, "sm_80") == first
    assert len(_cached(toy)) == 1


@pytest.mark.parametrize("change", ["define", "arch", "debug", "toy.cu", "outer.cuh", "inner.cuh", "compiler"])
def test_whatever_matters_is_part_of_the_key(change: str, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_compile", lambda *_: (b"machine code", ""))
    _build(toy)
    _build(toy)
    assert len(_cached(toy)) == 1
    if change in TOY:
        with (toy / change).open("a", encoding="utf-8") as file:
            file.write("// changed\n")
    if change == "compiler":
        monkeypatch.setattr(compiler, "build_hash", lambda _: "a build of the same version")
    value, arch = 2 if change == "define" else 1, "sm_90a" if change == "arch" else "sm_80"
    _build(toy, value, arch, debug=change == "debug")
    assert len(_cached(toy)) == 2


@pytest.mark.parametrize("damage", ["flipped", "truncated", "longer", "empty", "other"])
def test_a_damaged_file_is_compiled_again(damage: str, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin = _build(toy)
    (path,) = _cached(toy)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-100] ^= 1
    damaged = {"flipped": bytes(flipped), "truncated": good[:-1], "longer": good + b"\0", "empty": b"", "other": cubin}
    path.write_bytes(damaged[damage])
    assert _build(toy) == cubin
    assert path.read_bytes() == good
    monkeypatch.setattr(compiler, "_compile", _no_compiler)
    assert _build(toy) == cubin


def test_a_kernel_that_does_not_compile_says_which_and_why(toy: Path) -> None:
    with pytest.raises(RuntimeError) as caught:
        compile_kernel(toy / "broken.cu", {"TILE": 16}, "sm_80")
    first, log = str(caught.value).split("\n", 1)
    assert all(part in first for part in ("broken.cu", "-DTILE=16", "--gpu-architecture=sm_80"))
    assert "nonsense" in log and "broken.cu" in log
    assert not (toy.parent / "cache").exists()


def test_a_missing_compiler_is_the_users_to_install(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeError("CuPy failed to load libnvrtc.so.12:\nOSError: no such file")

    monkeypatch.setattr(compiler.import_nvrtc(), "getVersion", missing)
    with pytest.raises(UserError, match=r"NVRTC.*libnvrtc.*pip install") as caught:
        _build(toy)
    assert "\n" not in str(caught.value)


def test_without_cupy_it_is_cupy_that_is_named(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", None)
    with pytest.raises(UserError, match=r"NVRTC.*: pip install cupy-cuda12x$"):
        compiler.import_nvrtc()


def test_a_header_of_ours_serves_a_kernel_elsewhere(toy: Path) -> None:
    """Unless a file of that name lies beside it."""
    (toy / "user.cu").write_text('#include "common.cuh"\n#include "inner.cuh"\n', encoding="utf-8")
    found = read_with_includes(toy / "user.cu")
    assert found["common.cuh"] == (compiler.INCLUDE_DIR / "common.cuh").read_text(encoding="utf-8")
    assert found["inner.cuh"] == TOY["inner.cuh"] and "half.cuh" in found


def test_the_assembler_tells_of_registers_and_spills(toy: Path) -> None:
    report = resource_report(toy / "toy.cu", {"VALUE": 1}, "sm_80")
    assert "registers" in report and "spill" in report and "toy" in report
    assert not (toy.parent / "cache").exists()


def test_device_debug_is_other_code(toy: Path) -> None:
    assert _build(toy, debug=True) != _build(toy)
