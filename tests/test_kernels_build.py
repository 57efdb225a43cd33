"""Every kernel compiles for every architecture, the registry and the files agree, and the cache of compiled code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.errors import UserError
from app.kernels import compiler, registry
from app.kernels.compiler import ARCHITECTURES, KERNEL_DIR, architecture, architecture_number, compile_kernel, sources
from app.kernels.problems import ConvProblem, Problem
from app.kernels.registry import VARIANTS, LaunchConfig, Variant, choose
from app.networks import LENET5, Network
from app.plan import plan
from tests.networks_for_tests import ODD, random_graph

ALL_VARIANTS = pytest.mark.parametrize("row", VARIANTS, ids=lambda row: row.source.removesuffix(".cu"))


@cache
def _problems(operation: str) -> list[Problem]:
    """The nodes of lenet5, fused and not, and of a network that is everything lenet5 is not."""
    routes: list[tuple[Network, dict[str, Any]]] = [
        (LENET5, {}),
        (LENET5, {"input_dtype": "float32"}),
        (LENET5, {"fuse": False}),
        (LENET5, {"fuse": False, "dtype": "float64"}),
        (ODD, {}),
        (ODD, {"input_dtype": "float64", "dtype": "float64"}),
    ]
    graphs = {network.name: random_graph(network, bias=network is ODD) for network in (LENET5, ODD)}
    nodes = [node for network, options in routes for node in plan(graphs[network.name], "sm_90a", **options).nodes]
    return sorted({node.problem for node in nodes if node.head.operation == operation}, key=repr)


def _builds(row: Variant) -> list[tuple[dict[str, str | int], str]]:
    """(defines, architecture): all problems for the lowest one and the H100's, for the others every third in turn."""
    builds = []
    for at, arch in enumerate(arch for arch in ARCHITECTURES if architecture_number(arch) >= row.min_arch):
        served = [
            row.configure(problem).defines for problem in _problems(row.operation) if not row.refusal(problem, arch)
        ]
        distinct = list({repr(sorted(defines.items())): defines for defines in served}.values())
        assert distinct, f"no problem in this test reaches {row.source} on {arch}"
        some = distinct if at == 0 or arch == "sm_90a" else distinct[at % min(3, len(distinct)) :: 3]
        builds += [(defines, arch) for defines in some]
    return builds


@pytest.fixture(scope="module")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of compiled kernels for this file's tests alone."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENET_CACHE_DIR", str(folder))
        yield folder


@ALL_VARIANTS
def test_compiles_for_every_architecture(row: Variant, build_cache: Path) -> None:
    """Fails, not skips, without NVRTC: compiling needs no GPU, and ``make test`` installs the compiler."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC compiles in parallel
        for cubin in pool.map(lambda build: compile_kernel(row.source, *build), _builds(row)):
            assert cubin.startswith(b"\x7fELF") and row.entry.encode() in cubin


@ALL_VARIANTS
def test_launch_fits_the_hardware(row: Variant) -> None:
    for problem in _problems(row.operation):
        if row.refusal(problem, "sm_90a") is None:
            planned = row.configure(problem)
            assert planned.threads % 32 == 0 and 0 < planned.threads <= 1024
            for images in (1, 10_000, 1_000_000):
                x, y = planned.grid(images)
                assert 0 < x < 2**31 and 0 < y <= registry.MAX_GRID_Y


def test_every_file_has_one_row_and_every_row_its_file() -> None:
    assert sorted(row.source for row in VARIANTS) == sorted(path.name for path in KERNEL_DIR.glob("*.cu"))
    assert len({(row.operation, row.name) for row in VARIANTS}) == len(VARIANTS)


@ALL_VARIANTS
def test_the_file_holds_the_entry_point_and_its_description(row: Variant) -> None:
    lines = (KERNEL_DIR / row.source).read_text(encoding="utf-8").splitlines()
    assert any(row.entry + "(" in line for line in lines if not line.lstrip().startswith("//"))
    head = lines[: next(at for at, line in enumerate(lines) if not line.startswith("//"))]
    for part in ("From:", "Data:", "Launch:", "Bound by:"):
        assert any(line.startswith(f"// {part} ") for line in head), f"{row.source} does not say {part}"


def _variant(step: int, technique: str, **changes: Any) -> Variant:
    row = Variant(
        "conv", step, technique, "for tests", ("float32",), lambda _: None, lambda _: LaunchConfig({}, 32, _one_block)
    )
    return replace(row, **changes)


def _one_block(_: int) -> tuple[int, int]:
    return 1, 1


PROBLEM = ConvProblem(1, 9, 9, 4, 3)


def test_auto_takes_the_highest_step_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        _variant(12, "pools", refuses=lambda problem: None if problem.pool > 1 else "only pools"),
        _variant(3, "plain"),
        _variant(11, "hopper", min_arch=90),
        _variant(7, "ampere", min_arch=80),
        replace(_variant(20, "other"), operation="gemm"),
    )
    monkeypatch.setattr(registry, "VARIANTS", rows)
    assert [row.step for row in registry.variants("conv")] == [3, 7, 11, 12]

    def chosen(problem: Problem, arch: str, requested: str = "auto") -> str | None:
        row = choose("conv", problem, arch, requested)
        return row.name if row else None

    by_arch = {arch: chosen(PROBLEM, arch) for arch in ARCHITECTURES}
    assert (by_arch["sm_75"], by_arch["sm_80"], by_arch["sm_89"]) == ("plain", "ampere", "ampere")
    assert (by_arch["sm_90a"], by_arch["sm_120"]) == ("hopper", "hopper")
    assert chosen(replace(PROBLEM, pool=2), "sm_75") == "pools"
    assert chosen(PROBLEM, "sm_90a", "plain") == "plain"
    assert chosen(PROBLEM, "sm_80", "hopper") is None
    assert chosen(replace(PROBLEM, dtype="float64"), "sm_90a") is None
    assert "sm_90" in str(rows[2].refusal(PROBLEM, "sm_80"))
    assert "float64" in str(rows[1].refusal(replace(PROBLEM, dtype="float64"), "sm_80"))
    with pytest.raises(
        UserError, match="unknown conv kernel 'other': choose one of auto, plain, ampere, hopper, pools"
    ):
        choose("conv", PROBLEM, "sm_90a", "other")


def test_architectures_have_names_and_numbers() -> None:
    cards = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
    assert tuple(architecture(*card) for card in cards) == ARCHITECTURES
    assert [architecture_number(name) for name in ARCHITECTURES] == [75, 80, 86, 89, 90, 100, 120]


# The cache, on a kernel of three lines that includes a header that includes another.
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
    monkeypatch.setattr(compiler, "KERNEL_DIR", folder)
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def _build(value: int = 1, arch: str = "sm_80") -> bytes:
    return compile_kernel("toy.cu", {"VALUE": value}, arch)


def _cached(toy: Path) -> list[Path]:
    """Everything in the cache, hidden files included."""
    return sorted((toy.parent / "cache" / "kernels").iterdir())


def _no_compiler(*_: object) -> bytes:
    raise AssertionError("compiled where the cache should have served")


def test_sources_follow_includes(toy: Path) -> None:
    assert sources("toy.cu") == {name: TOY[name] for name in ("toy.cu", "outer.cuh", "inner.cuh")}


def test_the_second_time_nothing_is_compiled(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _build()
    assert first.startswith(b"\x7fELF")
    monkeypatch.setattr(compiler, "_compile", _no_compiler)
    assert _build() == first
    assert len(_cached(toy)) == 1


def test_the_order_of_constants_does_not_matter(toy: Path) -> None:
    first = compile_kernel("toy.cu", {"VALUE": 1, "OTHER": 2}, "sm_80")
    assert compile_kernel("toy.cu", {"OTHER": 2, "VALUE": 1}, "sm_80") == first
    assert len(_cached(toy)) == 1


@pytest.mark.parametrize("change", ["define", "arch", "toy.cu", "outer.cuh", "inner.cuh", "compiler"])
def test_whatever_matters_is_part_of_the_key(change: str, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_compile", lambda *_: b"machine code")
    _build()
    _build()
    assert len(_cached(toy)) == 1
    if change in TOY:
        with (toy / change).open("a", encoding="utf-8") as file:
            file.write("// changed\n")
    if change == "compiler":
        monkeypatch.setattr(compiler.nvrtc(), "getVersion", lambda: (99, 0))
    _build(2 if change == "define" else 1, "sm_90a" if change == "arch" else "sm_80")
    assert len(_cached(toy)) == 2


@pytest.mark.parametrize("damage", ["flipped", "truncated", "longer", "empty", "other"])
def test_a_damaged_file_is_compiled_again(damage: str, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin = _build()
    (path,) = _cached(toy)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-100] ^= 1
    damaged = {"flipped": bytes(flipped), "truncated": good[:-1], "longer": good + b"\0", "empty": b"", "other": cubin}
    path.write_bytes(damaged[damage])
    assert _build() == cubin
    assert path.read_bytes() == good
    monkeypatch.setattr(compiler, "_compile", _no_compiler)
    assert _build() == cubin


def test_a_cache_that_cannot_be_written_is_the_users_to_move(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = toy.parent / "file"
    file.write_text("not a folder")
    monkeypatch.setenv("LENET_CACHE_DIR", str(file / "below"))
    with pytest.raises(UserError, match="LENET_CACHE_DIR") as caught:
        _build()
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("moment", ["write_bytes", "replace"])
def test_an_interrupted_write_leaves_nothing(
    moment: str, error: type[BaseException], toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(Path, moment)

    def interrupted(path: Path, argument: Any) -> None:
        if moment == "write_bytes":
            real(path, argument[: len(argument) // 2])
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, moment, interrupted)
        with pytest.raises(UserError if error is OSError else error):
            _build()
    assert _cached(toy) == []
    assert _build().startswith(b"\x7fELF")


def test_a_kernel_that_does_not_compile_says_which_and_why(toy: Path) -> None:
    with pytest.raises(RuntimeError) as caught:
        compile_kernel("broken.cu", {"TILE": 16}, "sm_80")
    first, log = str(caught.value).split("\n", 1)
    assert all(part in first for part in ("broken.cu", "-DTILE=16", "--gpu-architecture=sm_80"))
    assert "nonsense" in log and "broken.cu" in log
    assert not (toy.parent / "cache").exists()


def test_a_missing_compiler_is_the_users_to_install(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeError("CuPy failed to load libnvrtc.so.12:\nOSError: no such file")

    monkeypatch.setattr(compiler.nvrtc(), "getVersion", missing)
    with pytest.raises(UserError, match=r"NVRTC.*libnvrtc.*pip install") as caught:
        _build()
    assert "\n" not in str(caught.value)
