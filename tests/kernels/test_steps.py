"""The ladder's order: each step names the one that it continues, and changes little of its file."""

from pathlib import Path

import pytest

from app.kernels.registry import VARIANTS, variants
from app.kernels.variant import Variant
from app.ladder.excerpt import changed_lines, code_lines
from tests.support.kernel_grid import row_of

LADDERS = ("conv", "gemm", "pool")  # single layers; pairs of layers are whole programs
MOST_CHANGED = 70  # lines of code
# The jumps: other instructions, so that nothing of the step below stays as it was.
TO_TENSOR_CORES = {("conv", "tensor-core"), ("gemm", "tensor-core"), ("gemm", "warpgroup")}
# Another algorithm: other numbers are loaded, multiplied and stored.
OTHER_SUMS = {("conv", "toom-cook")}
STEPS = [row for row in VARIANTS if row.operation in LADDERS and row.since is not None]
IN_STEPS = pytest.mark.parametrize("row", STEPS, ids=lambda row: row.source.removesuffix(".cu"))


def code(path: Path) -> list[str]:
    """The lines of a file without comments and empty lines."""
    return code_lines(path.read_text(encoding="utf-8"))


@IN_STEPS
def test_a_step_changes_little(row: Variant) -> None:
    assert row.since is not None
    changed = changed_lines(code(row_of(row.operation, row.since).path), code(row.path))
    if (row.operation, row.name) in TO_TENSOR_CORES | OTHER_SUMS:
        assert changed > MOST_CHANGED, "a step like any other: no longer one of the jumps"
    else:
        assert 0 < changed <= MOST_CHANGED, f"{row.source}: {changed} lines differ from {row.since}"


def test_changed_lines_are_counted() -> None:
    assert changed_lines(["a", "b", "c"], ["a", "b", "c"]) == 0
    assert changed_lines(["a", "b", "c"], ["a", "x", "y", "c", "d"]) == 3
    assert changed_lines(["a", "b", "c"], ["c"]) == 2


@pytest.mark.parametrize("row", VARIANTS, ids=lambda row: row.source.removesuffix(".cu"))
def test_a_step_continues_a_step_of_its_operation(row: Variant) -> None:
    names = [other.name for other in variants(row.operation)]
    assert row.since is None or names.index(row.since) < names.index(row.name)
