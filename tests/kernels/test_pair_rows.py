"""Test registry rows of kernels of two layers, without a GPU: how they pack, scale and split parameters."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.kernels.plain_problems import ResizeProblem
from app.kernels.problems import ConvPairProblem, PairProblem
from app.kernels.registry import variants
from app.kernels.scaling import (
    GREATEST,
    LARGEST,
    LARGEST_SCALE,
    LOW_SCALE,
    fits_float16,
    power_of_two_scales,
    scale_features,
    split_float16,
)
from app.kernels.variant import Variant
from tests.support.kernel_device import device_parameters, host_arrays
from tests.support.kernel_grid import convolution_pair, exactly, product_pair, row_of, served, sparsely, typed
from tests.support.kernel_oracle import layers_of, operands, run
from tests.support.on_processor import run_row

DTYPES = pytest.mark.parametrize("dtype", ["float16", "float16x2"])
LENET5_ROWS = [row for row in variants("conv_pair") if "-any" not in row.name]
ROWS = [row for name in ("conv_pair", "gemm_pair") for row in variants(name)]
ALL_ROWS = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.source.removesuffix(".cu"))


def hopper_row(dtype: str) -> Variant:
    """Return the row of the Hopper kernel for lenet5's convolutions in that type."""
    return row_of("conv_pair", {"float16": "wgmma", "float16x2": "wgmma-split"}[dtype])


def pack_for(row: Variant, problem: PairProblem, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    packing = row.launch_config(problem).packing
    assert packing is not None
    return packing.pack(arrays)


def run_hopper_kernel(problem: ConvPairProblem, arrays: Sequence[np.ndarray | None], x: np.ndarray) -> np.ndarray:
    """Emulate the Hopper kernel of the problem's type on images x; return the features as stored, flat."""
    return run_row(hopper_row(problem.dtype), problem, x.astype(np.uint8), arrays)[0]


# Packing


@DTYPES
@pytest.mark.parametrize(("factor1", "factor2"), [(1e-6, 1e-6), (1e-6, 1e6), (1e6, 1e-6), (30, 1), (1, 30), (0.1, 10)])
def test_scales_keep_small_and_large_filters_exact(dtype: str, factor1: float, factor2: float) -> None:
    """Scaled features are exact for filters of any size, and stay within float16's range."""
    problem = typed(convolution_pair(), dtype)
    x, parameters = operands(problem, 2)
    parameters = {"layer1": parameters["layer1"] * factor1, "layer2": parameters["layer2"] * factor2}
    arrays, known = scale_features(problem, device_parameters(problem, parameters))
    assert known is not None and fits_float16(problem, arrays)
    y = run_hopper_kernel(problem, arrays, x).astype(np.float64)
    assert y.max() <= known.bounds.max() <= LARGEST
    wanted = run(layers_of(problem), x.astype(np.float64), parameters)
    error = np.abs(y / np.tile(np.repeat(known.scales, 16), 2) - wanted).max() / np.abs(wanted).max()
    assert error < {"float16": 2e-3, "float16x2": 2e-6}[dtype]


@pytest.mark.parametrize("factor", [1e-11, 1e-5, 1e5, 1e10])
def test_features_that_are_not_scaled_are_exact_in_float32(factor: float) -> None:
    """Unscaled features, as an ordinary product reads them, are exact for maps of different sizes within the range."""
    problem = typed(convolution_pair(), "float16x2")
    x, parameters = operands(problem, 2)
    uneven = np.exp2(np.linspace(0, -11, 64))
    parameters = {"layer1": parameters["layer1"] * factor, "layer2": parameters["layer2"] * factor * uneven}
    arrays = device_parameters(problem, parameters)
    assert fits_float16(problem, arrays)
    y = run_hopper_kernel(problem, arrays, x).astype(np.float64)
    wanted = run(layers_of(problem), x.astype(np.float64), parameters)
    even = np.tile(np.repeat(1 / uneven, 16), 2)
    assert (np.abs(y - wanted) * even).max() < 2e-6 * (wanted * even).max()
    parameters["layer2"][..., -1] *= 2.0**-8
    assert not fits_float16(problem, device_parameters(problem, parameters))


@ALL_ROWS
def test_packed_arrays_match_the_kernel_s_arguments(row: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed arrays have the types and sizes of the kernel's arguments; x and the results stay the problem's."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.kernels import launch

    monkeypatch.setattr(launch, "compile_kernel", lambda *_, **__: b"")
    for problem in served(row, "sm_90a"):
        kernel = launch.Kernel(row, problem, "sm_90a")
        x, *rest = problem.arguments()
        results = [argument for argument in rest if argument.per_image]
        assert [argument.name for argument in results] == ["y", "labels"][: 1 + (row.operation == "gemm_pair")]
        packing = kernel.config.packing
        assert packing is not None
        assert list(kernel.arguments()) == [x, *packing.takes, *results]
        for array, argument in zip(kernel.pack(host_arrays(problem, 2)[1]), packing.takes, strict=True):
            assert argument.per_image == 0 and argument.fixed > 0
            assert (array is None) == argument.optional
            if array is not None:
                assert (array.dtype.name, array.size) == (argument.dtype, argument.fixed), argument.name
                assert array.flags.c_contiguous and np.isfinite(array).all()


@ALL_ROWS
def test_powers_of_two_between_the_layers_change_no_packed_bit(row: Variant) -> None:
    """Each map or hidden value is multiplied by a power of two, and the second layer's weights are divided by it."""
    rng = np.random.default_rng(0)
    for problem in served(row, "sm_90a"):
        assert isinstance(problem, PairProblem)
        if problem.first.activation in ("tanh", "sigmoid") or row.name == "wgmma-any":  # it keeps their factors
            continue
        if problem.dtype == "int8":  # its bytes end at 1
            continue
        _, arrays = host_arrays(problem, 1)
        w1, bias1, w2, bias2 = arrays
        assert w1 is not None and w2 is not None
        powers = np.exp2(rng.integers(-30, 31, w1.shape[-1])).astype(np.float32)
        taken_out = w2 / powers.reshape(-1, *(1,) * (w2.ndim - 1))
        other = pack_for(row, problem, [w1 * powers, None if bias1 is None else bias1 * powers, taken_out, bias2])
        for found, wanted in zip(other, pack_for(row, problem, arrays), strict=True):
            np.testing.assert_array_equal(found, wanted, strict=True)


# Scales, and numbers split into two float16


@pytest.mark.parametrize("value", [1.0, 1.5, 0.75, 3e-30, 7e30, 30_000.0, 2.0**15, 2.0**-140])
def test_scales_are_powers_of_two(value: float) -> None:
    scale = float(power_of_two_scales(value))
    assert np.frexp(scale)[0] == 0.5 and LARGEST / 2 < value * scale <= LARGEST


@pytest.mark.parametrize(("value", "scale"), [(0.0, LARGEST_SCALE), (np.inf, 1.0), (np.nan, 1.0)])
def test_zero_infinity_and_nan_have_fixed_scales(value: float, scale: float) -> None:
    assert float(power_of_two_scales(value)) == scale


@pytest.mark.parametrize("low_scale", [1.0, float(LOW_SCALE)])
def test_split_halves_add_up_to_the_number(low_scale: float) -> None:
    """The sum of both halves has 22 correct bits, or an error below half the smallest float16."""
    rng = np.random.default_rng(0)
    values = rng.choice([-1, 1], 100_000) * np.exp2(rng.uniform(-12, 14.8, 100_000))
    high, low = split_float16(values, low_scale)
    assert high.dtype == low.dtype == np.float16 and np.isfinite(high).all() and np.isfinite(low).all()
    error = np.abs(high.astype(np.float64) + low.astype(np.float64) / low_scale - values)
    assert (error <= 2.0**-22 * np.abs(values) + 2.0**-25 / low_scale).all()
    np.testing.assert_array_equal(high, values.astype(np.float16))


@DTYPES
@pytest.mark.parametrize("zero", ["layer1", "layer2", "both"])
def test_filters_of_zeros_make_zeros(dtype: str, zero: str) -> None:
    problem = typed(convolution_pair(), dtype)
    x, parameters = operands(problem, 2)
    parameters = {name: array * (zero not in (name, "both")) for name, array in parameters.items()}
    arrays = device_parameters(problem, parameters)
    assert fits_float16(problem, arrays)
    packed = pack_for(hopper_row(dtype), problem, arrays)
    assert all(array is not None and np.isfinite(array).all() for array in packed)
    assert not run_hopper_kernel(problem, arrays, x).any()


# Numbers beyond float16's range


@DTYPES
def test_range_is_that_of_the_brightest_image(dtype: str) -> None:
    """Filters just within the range are exact on images of 255, where all activations and features are greatest."""
    problem = typed(convolution_pair(), dtype)
    parameters = {"layer1": np.ones((5, 5, 1, 32)), "layer2": np.ones((5, 5, 32, 64))}
    largest = LARGEST if dtype == "float16" else GREATEST
    most = largest / (255 * 25 * 800)
    bright = np.full((2, 1, 28, 28), 255)
    for factor, fits in ((0.999 * most, True), (1.001 * most, False), (np.nan, False), (np.inf, False)):
        arrays = device_parameters(problem, {**parameters, "layer2": factor * parameters["layer2"]})
        assert fits_float16(problem, arrays) == fits
    arrays = device_parameters(problem, {**parameters, "layer2": 0.999 * most * parameters["layer2"]})
    np.testing.assert_allclose(
        run_hopper_kernel(problem, arrays, bright), 0.999 * largest, rtol=1e-3 if dtype == "float16" else 1e-6
    )


@DTYPES
@pytest.mark.parametrize(
    ("value", "fits"), [(0.0, True), (-31_000.0, True), (1e20, True), (1e35, False), (np.nan, False), (np.inf, False)]
)
def test_range_of_products_is_that_of_float32(dtype: str, value: float, fits: bool) -> None:
    problem = typed(product_pair(64, 32, 3), dtype)
    _, parameters = operands(problem, 1)
    arrays = device_parameters(problem, parameters)
    assert arrays[0] is not None
    arrays[0].flat[5] = value
    assert fits_float16(problem, arrays) == fits


# What the rows refuse


@pytest.mark.parametrize(("change", "reason"), [({"padding": 2}, "does not pad"), ({"bias": True}, "adds no bias")])
@pytest.mark.parametrize("half", ["first", "second"])
@pytest.mark.parametrize("row", LENET5_ROWS, ids=lambda row: row.name)
def test_lenet5_rows_refuse_padding_biases_and_enlarging(
    row: Variant, half: str, change: dict[str, Any], reason: str
) -> None:
    """Padding and biases are refused in either convolution, but ``mma`` adds biases. No row enlarges images."""
    pair = typed(exactly(convolution_pair()) if row.name.endswith("exact") else convolution_pair(), row.dtypes[0])
    pair = sparsely(pair) if row.sparse else pair
    assert row.refusal_reason(pair, "sm_90a") is None
    changed: Any = replace(getattr(pair, half), **change)
    adds = row.name == "mma" and "bias" in change
    assert row.refusal_reason(replace(pair, **{half: changed}), "sm_90a") == (None if adds else reason)
    enlarged = replace(pair, resize=ResizeProblem(1, 14, 20, 28))
    assert row.refusal_reason(enlarged, "sm_90a") == "enlarges no images"


@pytest.mark.parametrize("row", [row for row in LENET5_ROWS if row.sparse], ids=lambda row: row.name)
def test_sparse_rows_refuse_dense_filters(row: Variant) -> None:
    """A problem with dense filters is refused; dense filters of a sparse problem cannot be packed."""
    (problem,) = served(row, "sm_90a")
    assert isinstance(problem, ConvPairProblem)
    reason = "serves 2:4 sparse filters of the second convolution alone"
    assert row.refusal_reason(replace(problem, sparse=False), "sm_90a") == reason
    _, arrays = host_arrays(problem, 1)
    filters = arrays[2]
    assert filters is not None
    more = tuple(np.argwhere(filters == 0)[1234])
    filters = filters.copy()
    filters[more] = 1
    with pytest.raises(ValueError, match="the filters are not 2:4 sparse"):
        pack_for(row, problem, [arrays[0], None, filters, None])


@ALL_ROWS
def test_rows_refuse_types_that_they_cannot_store(row: Variant) -> None:
    """A kernel that stores one type alone must refuse others, because nothing else would notice."""
    for problem in served(row, "sm_90a"):
        assert isinstance(problem, PairProblem)
        for stored in {"float16", "float32"} - {problem.second.output_dtype}:
            second: Any = replace(problem.second, output_dtype=stored)
            other = replace(problem, second=second)
            can = "OUTPUT" in row.launch_config(problem).defines
            assert can or row.refusal_reason(other, "sm_90a") is not None, f"{row.source} would store {stored}"
