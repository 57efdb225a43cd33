"""Packed parameters of the two matrix products, multiplied as the tensor cores of a warpgroup and of a warp do it."""

from __future__ import annotations

import numpy as np
import pytest

from app.kernels.gemm_pair_rows import GEMM_PAIR_ROWS
from app.kernels.pair_packing import LOW_SCALE
from app.kernels.pair_wgmma_packing import DEPTH, pack_for_wgmma, split_tf32
from app.kernels.problems import LinearPairProblem, LinearProblem, storage

Array = np.ndarray
ROW = next(row for row in GEMM_PAIR_ROWS if row.operation == "gemm_pair" and row.name == "wgmma")
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


def _core_matrix(memory: Array, start: int, next_k: int, next_rows: int, rows: int) -> Array:
    """(rows, 16) that a descriptor of wgmma.cuh says: core matrices of 8 rows x 16 bytes, distances in bytes."""
    operand = np.empty((rows, 16))
    for row in range(rows):
        for k in range(16):
            byte = start + k // 8 * next_k + row // 8 * next_rows + row % 8 * 16 + k % 8 * 2
            operand[row, k] = memory[byte // 2]
    return operand


def _first_product(parts: list[Array], packed: Array, depth: int) -> Array:
    """(images, INPUTS) parts of the features, by the packed matrix → (images, HIDDEN), cross terms scaled down."""
    plane, part = HIDDEN * 16, depth // 8 * HIDDEN * 16  # bytes
    sums = np.zeros((len(parts[0]), HIDDEN))
    for k in range(0, INPUTS, 16):
        for w_part, x_part in ((0, 0), (1, 0), (0, 1))[: 3 if len(parts) == 2 else 1]:
            start = (k // depth * len(parts) + w_part) * part + k % depth // 8 * plane
            a = _core_matrix(packed, start, plane, 128, HIDDEN)
            sums += parts[x_part][:, k : k + 16] @ a.T / (LOW_SCALE if w_part + x_part else 1)
    return sums


def _second_product(hidden: Array, fragments: Array) -> Array:
    """(images, HIDDEN) → (images, 16), by mma_tf32's A as mma.cuh says, high parts and low parts."""
    scores = np.zeros((len(hidden), 16))
    assert not (fragments.view(np.uint32) & 0x1FFF).any()  # tfloat32
    steps = fragments.reshape(2, HIDDEN // 8, 32, 4).astype(np.float64).sum(axis=0)
    for step, lanes in enumerate(steps):
        a = np.empty((16, 8))
        for lane in range(32):
            for register in range(4):
                a[lane // 4 + register % 2 * 8, lane % 4 + register // 2 * 4] = lanes[lane, register]
        scores += hidden[:, step * 8 : step * 8 + 8] @ a.T
    return scores


@pytest.mark.parametrize("factor", [1.0, 1e-7, 1e4])
@pytest.mark.parametrize("dtype", ("float16", "float16x2"))
def test_packed_matrices_multiply_as_the_layers(dtype: str, factor: float) -> None:
    """However small or large the first matrix is: float16 keeps its bits by a power of two."""
    arrays = _weights(factor)
    w1, _, w2, _ = arrays
    assert w1 is not None and w2 is not None
    x = np.random.default_rng(6).normal(size=(5, INPUTS))
    expected = np.maximum(x @ w1.reshape(INPUTS, HIDDEN), 0) @ w2.reshape(HIDDEN, CLASSES)
    packed, bias1, fragments, bias2 = pack_for_wgmma(_problem(dtype), arrays)
    assert packed is not None and fragments is not None and bias1 is None and bias2 is None
    high = x.astype(np.float16).astype(np.float64)
    low = ((x - high) * LOW_SCALE).astype(np.float16).astype(np.float64)
    hidden = np.maximum(_first_product([high, low] if dtype == "float16x2" else [high], packed, DEPTH[dtype]), 0)
    scores = _second_product(hidden, fragments)
    assert np.abs(scores[:, :CLASSES] - expected).max() <= TOLERANCE[dtype] * np.abs(expected).max()
    assert not scores[:, CLASSES:].any()


@pytest.mark.parametrize("dtype", ROW.dtypes)
def test_the_row_says_what_it_packs(dtype: str) -> None:
    config = ROW.config(_problem(dtype))
    assert config.prepare is not None
    for argument, array in zip(config.takes, config.prepare(_weights()), strict=True):
        assert (array is None) == argument.optional
        assert array is None or (array.size, array.dtype.name) == (argument.fixed, argument.dtype)


def test_what_is_not_finite_is_not_split() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1 / 3, 0], np.float32)
    high, low = split_tf32(values)
    assert np.allclose(high + low, values, rtol=2**-22, atol=0, equal_nan=True)
    assert not low[[0, 1, 2, 4]].any()
