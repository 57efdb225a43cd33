"""Packed parameters of the pair of convolutions, multiplied as the tensor cores of a warp do it."""

import numpy as np
import pytest

from app.kernels.fused.conv_pair import CONV_PAIR_ROWS, pack_for_mma
from app.kernels.problems import ConvPairProblem, ConvProblem
from app.precision import storage
from tests.support.pair_mma_emulation import convolutions, pooled

Array = np.ndarray
ROW = next(row for row in CONV_PAIR_ROWS if row.operation == "conv_pair" and row.name == "mma")
LARGEST_FLOAT16 = 65_504
# float16 rounds filters and activations to 11 bits; their sums of two keep 22.
TOLERANCE = {"float16": 2e-3, "float16x2": 1e-6}


def _problem(dtype: str, bias: bool) -> ConvPairProblem:
    first = ConvProblem(1, 28, 28, 32, 5, 1, bias, "relu", 2, False, "uint8", dtype, storage(dtype))
    return ConvPairProblem(first, ConvProblem(32, 12, 12, 64, 5, 1, bias, "relu", 2, False, storage(dtype), dtype))


def _parameters(bias: bool, scale1: float = 1.0, scale2: float = 1.0) -> list[Array | None]:
    random = np.random.default_rng(7)
    w1, w2 = random.normal(size=(1, 5, 5, 32)) * scale1 / 500, random.normal(size=(32, 5, 5, 64)) * scale2 / 20
    biases = (random.normal(size=32) * scale1, random.normal(size=64) * scale2) if bias else (None, None)
    arrays = (w1, biases[0], w2, biases[1])
    return [None if array is None else array.astype(np.float32) for array in arrays]


def _images() -> Array:
    noise = np.random.default_rng(8).integers(0, 256, (2, 28, 28))
    return np.concatenate([noise, np.zeros_like(noise[:1]), np.full_like(noise[:1], 255)]).astype(np.float64)


def _direct(x: Array, w: Array, bias: Array | None) -> Array:
    """Convolution of (images, rows, columns, channels) with (channels, 5, 5, maps), pooled to averages."""
    rows, columns = x.shape[1] - 4, x.shape[2] - 4
    taps = ((p, q) for p in range(5) for q in range(5))
    sums = np.sum([x[:, p : p + rows, q : q + columns] @ w[:, p, q].astype(np.float64) for p, q in taps], axis=0)
    return pooled(sums + (0 if bias is None else bias)) / 4


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("dtype", ROW.dtypes)
def test_packed_filters_multiply_as_the_convolutions(dtype: str, bias: bool) -> None:
    problem, arrays, x = _problem(dtype, bias), _parameters(bias), _images()
    w1, bias1, w2, bias2 = arrays
    assert w1 is not None and w2 is not None
    expected = _direct(_direct(x[..., None], w1, bias1), w2, bias2)
    features, largest = convolutions(problem, x, pack_for_mma(problem, arrays))
    assert np.abs(features - expected).max() <= TOLERANCE[dtype] * np.abs(expected).max()
    assert largest <= LARGEST_FLOAT16


@pytest.mark.parametrize("dtype", ROW.dtypes)
@pytest.mark.parametrize("scale1, scale2", [(0, 1), (1, 0), (1e-30, 1e-30), (1e4, 1e-4), (1e-4, 1e4)])
def test_scales_are_finite_whatever_the_weights(dtype: str, scale1: float, scale2: float) -> None:
    problem = _problem(dtype, True)
    packed = pack_for_mma(problem, _parameters(True, scale1, scale2))
    assert all(array is not None and np.isfinite(array).all() for array in packed)
    _, largest = convolutions(problem, _images(), packed)
    assert largest <= LARGEST_FLOAT16


@pytest.mark.parametrize("dtype", ROW.dtypes)
def test_the_row_fits_every_card_with_its_instructions(dtype: str) -> None:
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"):
        assert ROW.refusal(_problem(dtype, True), arch) is None
    assert ROW.refusal(_problem(dtype, True), "sm_75") == "needs sm_80 or later, this is sm_75"
