"""Packed parameters of the two matrix products, multiplied as the tensor cores of a warpgroup and of a warp do it."""

import numpy as np
import pytest

from app.kernels.fused.gemm_pair import pack_for_wgmma, split_tf32
from app.kernels.problems import LinearPairProblem, LinearProblem
from app.precision import storage
from tests.support.pair_emulation import wgmma_products

Array = np.ndarray
INPUTS, HIDDEN, CLASSES = 512, 128, 10
# float16 rounds weights and features to 11 bits; their sums of two keep 22.
TOLERANCE = {"float16": 2e-3, "float16x2": 1e-6}


def _problem(dtype: str) -> LinearPairProblem:
    first = LinearProblem(INPUTS, HIDDEN, activation="relu", input_dtype=storage(dtype), dtype=dtype)
    return LinearPairProblem(first, LinearProblem(HIDDEN, CLASSES, argmax=True, dtype=dtype))


def _weights(factor: float = 1.0) -> list[Array | None]:
    """The first matrix times the factor, the second divided by it: ReLU lets that through."""
    random = np.random.default_rng(5)
    w1, w2 = random.normal(size=(INPUTS, HIDDEN)) * factor, random.normal(size=(HIDDEN, CLASSES)) / factor
    return [w1.reshape(-1).astype(np.float32), None, w2.reshape(-1).astype(np.float32), None]


@pytest.mark.parametrize("factor", [1.0, 1e-7, 1e4])
@pytest.mark.parametrize("dtype", ("float16", "float16x2"))
def test_packed_matrices_multiply_as_the_layers(dtype: str, factor: float) -> None:
    """However small or large the first matrix is: float16 keeps its bits by a power of two."""
    arrays = _weights(factor)
    w1, _, w2, _ = arrays
    assert w1 is not None and w2 is not None
    x = np.random.default_rng(6).normal(size=(5, INPUTS))
    expected = np.maximum(x @ w1.reshape(INPUTS, HIDDEN), 0) @ w2.reshape(HIDDEN, CLASSES)
    scores = wgmma_products(_problem(dtype), pack_for_wgmma(_problem(dtype), arrays), x)
    assert np.abs(scores[:, :CLASSES] - expected).max() <= TOLERANCE[dtype] * np.abs(expected).max()
    assert not scores[:, CLASSES:].any()


def test_what_is_not_finite_is_not_split() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1 / 3, 0], np.float32)
    high, low = split_tf32(values)
    assert np.allclose(high + low, values, rtol=2**-22, atol=0, equal_nan=True)
    assert not low[[0, 1, 2, 4]].any()
