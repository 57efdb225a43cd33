"""Long sums of the wgmma products, by g++: few images, a block for each slice, get the bits of one block of many."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.kernels.gemm import warpgroup
from app.kernels.problems import LinearPairProblem, LinearProblem, operation
from tests.support.kernel_device import host_arrays
from tests.support.kernel_grid import row_of
from tests.support.on_processor import run_row

IMAGES = 11  # more than one tile of eight columns
LONG = LinearProblem(1096, 72, bias=True, activation="tanh")  # 18 steps, the last one short, in three slices
HIDDEN = replace(LONG, outputs=40, activation="relu", output_dtype="float32")
ROWS = {"ROWS": 40}


@pytest.mark.parametrize(
    ("row", "dtype", "stored"), [("warpgroup", "float16x2", "float32"), ("wgmma-any", "float16", "float16")]
)
def test_few_images_get_the_bits_of_many(row: str, dtype: str, stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warpgroup, "LONG_SUM", 16)
    first = replace(LONG if row == "warpgroup" else HIDDEN, dtype=dtype, input_dtype=stored)
    problem: Any = first
    if row == "wgmma-any":
        problem = LinearPairProblem(first, LinearProblem(40, 10, bias=True, argmax=True, dtype=dtype))
    variant = row_of(operation(problem), row)
    x, arrays = host_arrays(problem, IMAGES)
    kernels = [launch.entry for launch in variant.launch_config(problem, ROWS).launches if launch.grid(IMAGES)[0]]
    assert [entry.rpartition("_")[2] for entry in kernels] == ["slice", "finish"]
    few = {images: run_row(variant, problem, x[:images], arrays, ROWS) for images in (1, IMAGES)}
    monkeypatch.setattr(warpgroup, "FEW_IMAGES", 0)
    whole = run_row(variant, problem, x, arrays, ROWS)
    assert np.isfinite(whole[0]).all() and np.ptp(whole[0]) > 0
    for results in few.values():
        for result, wanted in zip(results, whole, strict=True):
            np.testing.assert_array_equal(result.view(np.uint8), wanted[: len(result)].view(np.uint8))


def test_short_sums_and_the_fused_argmax_are_one_slice() -> None:
    """So are split numbers that leave three warpgroups no registers for it."""
    wide = replace(LONG, inputs=8192, outputs=160, dtype="float16x2", input_dtype="float32")
    assert [warpgroup.slice_count(replace(wide, outputs=outputs)) for outputs in (128, 136)] == [16, 1]
    for problem in (replace(LONG, inputs=4032), replace(LONG, inputs=4104, outputs=10, activation="", argmax=True)):
        problem = replace(problem, dtype="float16", input_dtype="float16")
        config = row_of("gemm", "warpgroup").launch_config(problem)
        assert len(config.launches) == 1 and not config.workspace and config.defines["SLICES"] == 1
