"""Test that kernels lie in the cache before they are measured."""

from pathlib import Path

import pytest

from app.cuda.compiler import is_cached
from app.kernels import registry
from app.kernels.plain_problems import ArgmaxProblem
from app.kernels.problems import LinearProblem, Problem
from app.kernels.variant import Variant
from app.lab.bench.compiling import compile_rows
from app.planning import tuning


def test_served_rows_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    served: list[tuple[Problem, Variant]] = [
        (ArgmaxProblem(10), registry.variants("argmax")[0]),
        (LinearProblem(20, 10), next(row for row in registry.variants("gemm") if row.name == "naive")),
    ]
    no_tuning = tuning.load("no such card")
    compile_rows(served, "sm_80", no_tuning)
    for problem, row in served:
        assert is_cached(row.path, row.config(problem, no_tuning.parameters(problem, row, "sm_80")).defines, "sm_80")


def test_refused_rows_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    problem = LinearProblem(20, 10, dtype="float16", input_dtype="float16", output_dtype="float16")
    hopper = [(problem, row) for row in registry.variants("gemm") if row.refusal(problem, "sm_75") is not None]
    assert hopper
    compile_rows(hopper, "sm_75", tuning.load("no such card"))
    assert not [*tmp_path.rglob("*.cubin")]
