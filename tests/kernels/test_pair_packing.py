"""Packed parameters of the pairs, multiplied as tensor cores do it: mma's convolutions and wgmma's products."""

import numpy as np
import pytest

from app.kernels.fused.conv_pair import pack_for_mma
from app.kernels.fused.gemm_pair import pack_for_wgmma, split_tf32
from tests.support.kernel_device import device_parameters
from tests.support.kernel_grid import convolution_pair, product_pair, row_of, typed
from tests.support.kernel_oracle import layers_of, operands, run
from tests.support.pair_emulation import Packed, mma_convolutions, wgmma_products

LARGEST_FLOAT16 = 65_504
# float16 rounds weights and what is between the layers to 11 bits; their sums of two keep 22.
TOLERANCE = {"float16": 2e-3, "float16x2": 1e-6}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


def _of_convolutions(
    dtype: str, bias: bool, scale1: float = 1.0, scale2: float = 1.0
) -> tuple[Packed, tuple[np.ndarray, float], np.ndarray]:
    """Packed parameters of scaled layers, what the kernel makes of noise, black and white, and the layers' results."""
    problem = typed(convolution_pair(bias, bias), dtype)
    noise, parameters = operands(problem, 2)
    x = np.concatenate([noise, np.zeros_like(noise[:1]), np.full_like(noise[:1], 255)])
    parameters = {n: array * (scale1 if n.startswith("layer1") else scale2) for n, array in parameters.items()}
    arrays = [None if a is None else a.astype(np.float32) for a in device_parameters(problem, parameters)]
    packed = pack_for_mma(problem, arrays)
    wanted = run(layers_of(problem), x.astype(np.float64), parameters)
    return packed, mma_convolutions(problem, packed, x[:, 0]), wanted


@pytest.mark.parametrize("bias", (False, True))
@DTYPES
def test_packed_filters_multiply_as_the_convolutions(dtype: str, bias: bool) -> None:
    _, (features, largest), wanted = _of_convolutions(dtype, bias)
    assert np.abs(features - wanted).max() <= TOLERANCE[dtype] * np.abs(wanted).max()
    assert largest <= LARGEST_FLOAT16


@DTYPES
@pytest.mark.parametrize("scale1, scale2", [(0, 1), (1, 0), (1e-30, 1e-30), (1e4, 1e-4), (1e-4, 1e4)])
def test_scales_are_finite_whatever_the_weights(dtype: str, scale1: float, scale2: float) -> None:
    packed, (_, largest), _ = _of_convolutions(dtype, True, scale1, scale2)
    assert all(array is not None and np.isfinite(array).all() for array in packed)
    assert largest <= LARGEST_FLOAT16


@DTYPES
def test_the_row_fits_every_card_with_its_instructions(dtype: str) -> None:
    row, problem = row_of("conv_pair", "mma"), typed(convolution_pair(True, True), dtype)
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"):
        assert row.refusal(problem, arch) is None
    assert row.refusal(problem, "sm_75") == "needs sm_80 or later, this is sm_75"


@pytest.mark.parametrize("factor", [1.0, 1e-7, 1e4])
@DTYPES
def test_packed_matrices_multiply_as_the_layers(dtype: str, factor: float) -> None:
    """However small or large the first matrix is, which the second undoes: float16 keeps its bits by a power of two."""
    problem = typed(product_pair(512, 128, 10), dtype)
    x, parameters = operands(problem, 5)
    parameters = {"layer1": parameters["layer1"] * factor, "layer2": parameters["layer2"] / factor}
    arrays = [None if a is None else a.astype(np.float32) for a in device_parameters(problem, parameters)]
    wanted = run(layers_of(problem), x, parameters).reshape(5, 10)
    scores = wgmma_products(problem, pack_for_wgmma(problem, arrays), x)
    assert np.abs(scores[:, :10] - wanted).max() <= TOLERANCE[dtype] * np.abs(wanted).max()
    assert not scores[:, 10:].any()


def test_what_is_not_finite_is_not_split() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1 / 3, 0], np.float32)
    high, low = split_tf32(values)
    assert np.allclose(high + low, values, rtol=2**-22, atol=0, equal_nan=True)
    assert not low[[0, 1, 2, 4]].any()
