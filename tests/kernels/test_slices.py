"""Test long sums of wgmma products, emulated on the CPU: a block per slice gives the bits of one block for all."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from app.kernels.gemm import warpgroup
from app.kernels.problems import LinearPairProblem, LinearProblem, operation
from tests.support.kernel_device import host_arrays
from tests.support.kernel_grid import row_of
from tests.support.kernel_oracle import check, expected
from tests.support.on_processor import run_row

IMAGES = 43  # more than a block of 40
LONG = LinearProblem(1096, 72, bias=True, activation="tanh")  # 18 steps, the last one short, in three slices
HALF = replace(LONG, dtype="float16", input_dtype="float16")
SPLIT = replace(LONG, dtype="float16x2", input_dtype="float32")


def make_pair(first: LinearProblem) -> LinearPairProblem:
    first = replace(first, activation="relu", output_dtype="float32", exact=False)
    return LinearPairProblem(first, LinearProblem(first.outputs, 10, bias=True, argmax=True, dtype=first.dtype))


@pytest.mark.parametrize(
    ("problem", "rows"),
    [
        (SPLIT, 40),
        (make_pair(replace(HALF, outputs=40)), 40),
        # Totals in shared memory: half a warp of outputs, three full warpgroups, two tiles; exact weights, and bytes.
        (replace(SPLIT, outputs=136), 80),
        (replace(SPLIT, outputs=200, input_dtype="uint8"), 40),
        (replace(SPLIT, outputs=192, exact=True), 40),
        (make_pair(replace(SPLIT, outputs=136)), 80),
        (make_pair(replace(SPLIT, outputs=192)), 40),
        (replace(make_pair(replace(SPLIT, outputs=160)), exact=True), 80),
        (make_pair(replace(SPLIT, outputs=150, input_dtype="uint8")), 40),
    ],
)
def test_few_images_get_the_bits_of_many(problem: Any, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warpgroup, "LONG_STEPS", 16)
    variant = row_of(operation(problem), "wgmma-any" if isinstance(problem, LinearPairProblem) else "warpgroup")
    settings = {"ROWS": rows}
    assert variant.refusal_reason(problem, "sm_90a") is None
    x, arrays = host_arrays(problem, IMAGES)
    kernels = [launch.entry for launch in variant.launch_config(problem, settings).launches if launch.grid(IMAGES)[0]]
    assert [entry.rpartition("_")[2] for entry in kernels] == ["slice", "finish"]
    few = {images: run_row(variant, problem, x[:images], arrays, settings) for images in (1, IMAGES)}
    monkeypatch.setattr(warpgroup, "FEW_IMAGES", 0)
    whole = run_row(variant, problem, x, arrays, settings)
    check(whole[0], problem, expected(problem, IMAGES, variant))
    assert np.ptp(whole[0]) > 0
    for results in few.values():
        for result, wanted in zip(results, whole, strict=True):
            np.testing.assert_array_equal(result.view(np.uint8), wanted[: len(result)].view(np.uint8))


def test_short_sums_and_the_fused_argmax_are_one_slice() -> None:
    for problem in (replace(LONG, inputs=4032), replace(LONG, inputs=4104, outputs=10, activation="", argmax=True)):
        problem = replace(problem, dtype="float16", input_dtype="float16")
        config = row_of("gemm", "warpgroup").launch_config(problem)
        assert len(config.launches) == 1 and not config.workspace and config.defines["SLICES"] == 1


@pytest.mark.parametrize("stored", ["uint8", "float32"])
@pytest.mark.parametrize("exact", [False, True])
def test_long_sums_have_the_same_slices_alone_and_in_a_pair(stored: str, exact: bool) -> None:
    """Kernels of one and of two layers cut a long sum into the same slices, with at least two stages."""
    for outputs, rows in product(range(8, 193, 8), (40, 80)):
        first = replace(SPLIT, inputs=20184, outputs=outputs, input_dtype=stored)
        alone = row_of("gemm", "warpgroup").launch_config(replace(first, exact=exact), {"ROWS": rows})
        both = row_of("gemm_pair", "wgmma-any").launch_config(replace(make_pair(first), exact=exact), {"ROWS": rows})
        for config in (alone, both):
            assert config.defines["SLICES"] == 40 and int(config.defines["STAGES"]) >= 2
            assert max(launch.shared_bytes for launch in config.launches) <= warpgroup.SHARED


@pytest.mark.parametrize("outputs", [64, 128, 192])
def test_warpgroups_divide_the_registers_in_eights(outputs: int) -> None:
    defines = warpgroup.pipeline_defines(LinearProblem(256, outputs, dtype="float16"), 80)
    producers, consumers = int(defines["PRODUCER_REGISTERS"]), int(defines["CONSUMER_REGISTERS"])
    count = int(defines["TILE"]) // 64
    assert producers % 8 == consumers % 8 == 0 and 0 <= warpgroup.REGISTERS - producers - count * consumers < 8 * count
