"""Test ``check``: planted mistakes in kernels that run on the CPU, and how it describes them."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.commands.check import CheckRequest
from app.cuda.device import why_no_gpu
from app.kernels import registry
from app.kernels.problems import LinearProblem
from app.kernels.variant import Variant
from app.lab.checking.cases import IMAGES, SHAPES, Case, small_cases
from app.ladder.check import job
from app.ladder.emulation import program
from app.ladder.emulation.program import why_not_on_cpu
from app.terminal.output import Output
from app.terminal.text import UNLIMITED, WIDTH
from tests.support.host_kernels import skip_without_compiler
from tests.support.kernel_grid import row_of

Plant = Callable[[Variant, str, str], None]
WORKS = "1,6,9,3,3,1"
# (kernel, its text, replacement) → pattern of the error; LINE stands for the line of the text.
MISTAKES = {
    ("direct", "* K + q) * M", "* K + p) * M"): "image 0, map 0, row 0, column 0: found ",
    (
        "direct",
        "in_image] =",
        "in_image + 1] =",
    ): r"cu:LINE: it writes y\[168\]: y has 168 elements \(thread 55 of block 0, 2, 0\)",
    ("direct", "window[(", "window[-600 + ("): r"it reads x\[-\d+\]: x has",
    (
        "shared-tile",
        "pixels + SIDE * SIDE",
        "pixels + SIDE * SIDE + 8",
    ): "it writes byte .* of shared memory: its block",
    ("specialised", "< OH &&", "< OH - 1 &&"): "row 3, column 0: nothing was written",
}


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Return a function that replaces text in a copy of a kernel's file, which the registry then has."""
    skip_without_compiler()
    monkeypatch.setattr("app.ladder.emulation.program.SECONDS", 1)

    def planted(row: Variant, old: str, new: str) -> None:
        text = row.path.read_text(encoding="utf-8")
        assert old in text
        (tmp_path / row.source).write_text(text.replace(old, new, 1), encoding="utf-8")
        changed = replace(row, folder=tmp_path, dtypes=row.dtypes[:1])
        monkeypatch.setattr(registry, "find_variant", lambda *_: changed)

    return planted


def run_check(capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, str]:
    code = job.check(CheckRequest(**{"device": "cpu", "output": Output(), **options}))
    return code, " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("name", "old", "new"), MISTAKES)
def test_a_mistake_is_found_at_its_position(
    name: str, old: str, new: str, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    row = row_of("conv", name)
    line = row.path.read_text(encoding="utf-8").partition(old)[0].count("\n") + 1
    plant(row, old, new)
    code, text = run_check(capsys, conv=name, shape=WORKS)
    assert code == 1 and "WRONG: 0 of 1 shapes are right" in text
    assert re.search(MISTAKES[name, old, new].replace("LINE", str(line)), text), text


def test_a_loop_without_an_end_stops_the_check(
    plant: Plant, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run takes seconds until it is stopped: shapes after the first are not tried."""
    monkeypatch.setattr(job, "core_count", lambda: 1)
    plant(row_of("conv", "direct"), "q < K; q++", "q < K;")
    code, text = run_check(capsys, conv="direct")
    assert code == 1 and "WRONG: 0 of " in text and "mend the loop without an end first" in text
    assert text.count("it does not come to an end") == 1 < text.count(" not tried ")


def test_an_index_beyond_a_declared_array_is_found(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    row = row_of("gemm", "shared-tiled")
    plant(row, "[TILE][TILE]", "[TILE][TILE - 1]")
    code, text = run_check(capsys, fc="shared-tiled", shape="5,3")
    found = re.search(r"gemm_02_shared_tiled\.cu:(\d+): index \d+ out of bounds for type 'float \[.*\(thread ", text)
    assert code == 1 and found, text
    assert "[i][j] = " in row.path.read_text(encoding="utf-8").splitlines()[int(found[1]) - 1]


def test_a_syntax_error_is_one_line(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    plant(row_of("gemm", "naive"), "REAL sum", "RAEL sum")
    with pytest.raises(UserError, match=r"does not compile for the processor: gemm_01_naive.cu:\d+: .*RAEL"):
        run_check(capsys, fc="naive", shape="5,3")


@pytest.mark.parametrize(
    "options",
    [
        {"conv": "im2col-gemm", "shape": WORKS},  # several launches and a workspace
        {"fc": "warpgroup", "shape": "72,33"},  # Hopper's instructions
        {"conv": "warpgroup-sparse", "shape": "16,7,9,43,3,1"},  # the only filters that it supports
        {"pool": "shared", "layer": "pool1"},
    ],
)
def test_correct_kernels_pass(options: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_compiler()
    code, text = run_check(capsys, **options)
    assert code == 0 and "right: " in text and "WRONG" not in text


def test_wide_shows_every_error() -> None:
    wrong = {"shape": "C1", "types": "float32", "images": 3, "verdict": job.WRONG, "reason": "image 0"}
    document: Any = {"operation": "conv", "kernel": "a", "source": "a", "device": "b", "shapes": [wrong] * 5}
    assert [job.as_text(document, width).count("image 0") for width in (WIDTH, UNLIMITED)] == [job.TOLD, 5]


def test_check_works_with_fortify_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ubuntu's g++ sets _FORTIFY_SOURCE, which checks jumps. All code is compiled for this single kernel."""
    skip_without_compiler()
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {program.COMPILER} -D_FORTIFY_SOURCE=2 "$@"\n')
    compiler.chmod(0o700)
    monkeypatch.setattr(program, "COMPILER", str(compiler))
    monkeypatch.setattr(program, "SHARED_FROM", 4)
    row = row_of("conv", "image-loop")
    monkeypatch.setattr(registry, "find_variant", lambda *_: replace(row, dtypes=row.dtypes[:1]))
    code, text = run_check(capsys, conv="image-loop", shape=WORKS)
    assert code == 0 and "WRONG" not in text


def test_every_kernel_runs_on_the_cpu_or_says_why_not() -> None:
    silent = []
    for operation in SHAPES:
        for row in registry.variants(operation):
            if why_not_on_cpu(row) is None:
                cases = small_cases(row, "sm_90a")
                assert {case.problem.dtype for case in cases} == set(row.dtypes), row.name
            else:
                silent.append(row.name)
    assert silent == ["cublas", "cublas"]


def test_the_first_wrong_output_is_described() -> None:
    """The error is in an output of a matrix product or of pooling, or in a label."""
    products = Case(row_of("gemm", "naive"), LinearProblem(45, 10, argmax=True), 4)
    exact, _ = products.expected_and_tolerance
    labels = exact.argmax(axis=1).astype(np.uint8)
    y = exact.astype(np.float32)
    assert products.describe_first_error([y.ravel(), labels]) is None
    wrong = labels.copy()
    wrong[2] = 255
    assert (
        products.describe_first_error([y.ravel(), wrong])
        == f"image 2, label: nothing was written, expected {labels[2]}"
    )
    y[3, 7] = np.nan
    assert "image 3, output 7: found nan" in str(products.describe_first_error([y.ravel(), labels]))
    pool = Case(row_of("pool", "direct"), SHAPES["pool"][1], IMAGES["pool"])  # (2, 10, 9)
    y = pool.expected_and_tolerance[0].astype(np.float32)
    y[1, 90 + 9 + 4 :] += 1
    said = str(pool.describe_first_error([y.ravel()]))
    assert said.startswith("image 1, map 1, row 1, column 4: found ") and "first of 77 wrong among 540" in said


def test_missing_compiler_or_card(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(job, "COMPILER", None)
    with pytest.raises(UserError, match=r"g\+\+ is not installed: .*apt install g\+\+"):
        run_check(capsys, conv="direct")
    if why_no_gpu() is not None:
        with pytest.raises(UserError, match="check on the processor with --device cpu"):
            run_check(capsys, conv="direct", device="cuda")


@pytest.mark.gpu
def test_check_on_the_card(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(capsys, conv="direct", device="cuda")[0] == 0
    plant(row_of("conv", "direct"), "* K + q) * M", "* K + p) * M")
    code, text = run_check(capsys, conv="direct", shape=WORKS, device="cuda")
    assert code == 1 and "image 0, map 0, row 0, column 0: found " in text
