"""Test the estimates that choose between kernels with times that were measured on an H100."""

from typing import Any

import pytest

from app.kernels import warpgroup_convolution as warpgroups
from app.kernels.problems import ConvProblem
from app.kernels.variant import Unfit
from tests.support.kernel_grid import row_of

# (channels, height, width, maps, kernel, stride), pool, padding, input type; then the time on tensor cores ÷ that on
# CUDA cores, in float16 and in float16x2; None if about 1 or not measured (docs/fast-path.md, "The cost models").
MEASURED = (
    ((1, 28, 28, 32, 5, 1), 2, 0, "uint8", None, 0.33),
    ((1, 28, 28, 35, 10, 1), 1, 0, "uint8", 0.61, 0.76),
    ((35, 19, 19, 13, 11, 1), 1, 0, "float", 0.31, None),
    ((31, 16, 16, 12, 4, 1), 1, 0, "float", 0.43, 1.37),
    ((53, 9, 9, 57, 7, 3), 1, 3, "float", 0.29, None),
    ((66, 11, 11, 67, 4, 3), 1, 0, "float", 0.36, None),
    ((4, 37, 8, 36, 7, 1), 1, 0, "float", 0.32, None),
    ((1, 28, 28, 4, 11, 1), 1, 3, "uint8", 1.5, 3.09),
    ((1, 28, 28, 3, 7, 1), 1, 0, "uint8", 1.66, 3.47),
    ((1, 28, 28, 53, 2, 1), 3, 0, "uint8", 1.53, 1.64),
    ((1, 89, 83, 42, 2, 1), 1, 0, "uint8", 1.55, None),
    ((3, 46, 17, 4, 10, 1), 1, 0, "uint8", 1.58, 3.36),
    ((3, 54, 54, 3, 3, 1), 1, 0, "uint8", 1.48, 4.18),
    ((3, 85, 85, 11, 3, 1), 2, 0, "uint8", None, 3.31),
    ((1, 46, 75, 24, 5, 1), 1, 0, "uint8", None, 2.0),
    ((42, 43, 40, 4, 6, 2), 1, 0, "float", None, 2.64),
    ((11, 42, 42, 2, 4, 1), 1, 0, "float", 1.4, 3.38),
    ((1, 17, 81, 3, 2, 1), 1, 0, "uint8", None, 5.38),
)


@pytest.mark.parametrize(("sizes", "pool", "padding", "source", "half", "split"), MEASURED, ids=str)
def test_tensor_cores_are_chosen_where_measured_faster(
    sizes: Any, pool: int, padding: int, source: str, half: float | None, split: float | None
) -> None:
    for dtype, stored, measured in (("float16", "float16", half), ("float16x2", "float32", split)):
        types: dict[str, Any] = {"dtype": dtype, "output_dtype": stored}
        types |= {"input_dtype": source if source == "uint8" else stored, "pool": pool, "padding": padding}
        problem = ConvProblem(*sizes, **types)
        worthwhile = row_of("conv", "tensor-core").worthwhile(problem, "sm_90a")
        assert measured is None or worthwhile == (measured < 1), dtype


@pytest.mark.parametrize(("parts", "most", "more"), [(1, 24, 32), (2, 12, 16)])
def test_a_warpgroup_holds_the_sums_of_all_parts(parts: int, most: int, more: int) -> None:
    convolution = warpgroups.WarpgroupConvolution(16, 28, 64, 3, 1, 26, 26, 1, parts, parts)
    warpgroups.Tiles(3, most, 1).check(convolution)
    with pytest.raises(Unfit, match="no registers"):
        warpgroups.Tiles(3, more, 1).check(convolution)


def test_results_from_shared_memory_take_a_third_of_the_stores() -> None:
    convolution = warpgroups.WarpgroupConvolution(16, 28, 64, 3, 1, 26, 26, 1, 1, 1)
    rings = [warpgroups.FilterRing.choose(0, results, convolution) for results in (0, 16)]
    direct, staged = (warpgroups.estimated_clocks(convolution, warpgroups.Tiles(1, 8, 1), ring) for ring in rings)
    stores = warpgroups.STORE_CLOCKS * warpgroups.RELATIVE_TIME[1] * 8 * 4  # of 8 rows, four times across
    assert direct - staged == pytest.approx(2 * stores)
