"""Check the matrix products of training against float64 on random operands, on a GPU or on the host."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
from math import prod

import cupy

from app.cuda import memory
from app.kernels.problems import ConvProblem
from app.lab.bench.tolerance import ACTIVATION, ROUNDING, SLACK
from app.layers import activation_layer
from app.training.gpu.products import ConvFilterGradient, Gemm, conv_forward_kernel, conv_input_gradient_kernel
from tests.support.kernel_cases import architecture
from tests.support.training_device import Build, fetched, poisoned, recorded


@dataclass(frozen=True)
class GemmCase:
    """A product y (m, n) with sums of k terms."""

    m: int
    n: int
    k: int
    transpose_a: bool = False
    transpose_b: bool = False
    bias: bool = False
    activation: str = ""
    alpha: float = 1.0
    beta: float = 0.0


@dataclass(frozen=True)
class ConvCase:
    """A convolution with batches of several sizes, one after another, as at the end of an epoch."""

    sizes: ConvProblem
    batches: tuple[int, ...]
    activation: str = ""
    bias: bool = False


def built(cases: Iterable[GemmCase | ConvCase], arch: str) -> list[Build]:
    """Return the builds that the cases need."""
    with recorded() as found:
        for case in cases:
            if isinstance(case, GemmCase):
                gemm_of(case, arch)(None, (case.m, case.n, case.k), None, None, None, None)
            else:
                conv_forward_kernel(arch, case.sizes, case.bias, case.activation)
                conv_input_gradient_kernel(arch, case.sizes)
                ConvFilterGradient(arch, case.sizes)(None, 1, None, None, None)
    return found


def gemm_of(case: GemmCase, arch: str) -> Gemm:
    """Return the product under test."""
    return Gemm(arch, case.transpose_a, case.transpose_b, case.bias, case.activation)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random float32 numbers of both signs with this shape."""
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def spoil(array: np.ndarray) -> None:
    """Put a NaN and an infinity into the array."""
    array.reshape(-1)[[array.size // 3, array.size - 1]] = np.nan, np.inf


def check(found: np.ndarray, exact: np.ndarray, magnitude: np.ndarray, terms: int, activation: str = "") -> None:
    """Check every element up to the roundings of its sum, and that NaN and infinity are exactly where expected."""
    wanted = activation_layer(activation).reference(exact.copy(), {}) if activation else exact
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite])
    allowed = ROUNDING["float32"] * (
        (terms + SLACK) * magnitude[finite] + ACTIVATION * (activation not in ("", "relu"))
    )
    assert (np.abs(found[finite] - wanted[finite]) <= allowed).all()


def check_gemm(case: GemmCase, spoiled: bool = False) -> None:
    """Check a product against float64 and for equal bits in two runs. spoiled: a contains NaN and infinity."""
    a, b = random(case.m, case.k), random(case.k, case.n, seed=1)
    bias, before = random(case.n, seed=2), random(case.m, case.n, seed=3)
    if spoiled:
        spoil(a)
    gemm = gemm_of(case, architecture())
    results = []
    for _ in range(2):
        y = memory.upload(before) if case.beta else poisoned(before.size)
        operands = (
            memory.upload(a.T.copy() if case.transpose_a else a),
            memory.upload(b.T.copy() if case.transpose_b else b),
            memory.upload(bias) if case.bias else None,
        )
        gemm(cupy.cuda.Stream.null, (case.m, case.n, case.k), *operands, y, case.alpha, case.beta)
        results.append(fetched(y, before.shape))
    np.testing.assert_array_equal(results[0].view(np.uint32), results[1].view(np.uint32))

    def expected_product(of: Callable[[Any], Any]) -> np.ndarray:
        total = of(case.alpha) * (of(a.astype(np.float64)) @ of(b.astype(np.float64)))
        return total + of(case.beta) * of(before.astype(np.float64)) + (of(bias) if case.bias else 0)

    with np.errstate(invalid="ignore"):
        check(results[0], expected_product(lambda x: x), expected_product(np.abs), case.k, case.activation)


def conv_products(
    x: np.ndarray, w: np.ndarray, dy: np.ndarray, stride: int, padding: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return y, dx and dw of a convolution in float64, computed tap by tap."""
    x, w, dy = (array.astype(np.float64) for array in (x, w, dy))
    around = (padding, padding)
    x = np.pad(x, ((0, 0), (0, 0), around, around))
    y, dx, dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
    for p, q in np.ndindex(w.shape[:2]):
        rows, columns = (slice(at, at + stride * (n - 1) + 1, stride) for at, n in ((p, dy.shape[2]), (q, dy.shape[3])))
        seen = x[:, :, rows, columns]
        y += np.moveaxis(np.tensordot(seen, w[p, q], (1, 0)), 3, 1)
        dx[:, :, rows, columns] += np.moveaxis(np.tensordot(dy, w[p, q], (1, 1)), 3, 1)
        dw[p, q] = np.tensordot(seen, dy, ((0, 2, 3), (0, 2, 3)))
    inside = slice(padding, x.shape[2] - padding), slice(padding, x.shape[3] - padding)
    return y, dx[(..., *inside)], dw


def check_conv(case: ConvCase, spoiled: bool = False) -> None:
    """Check y, dx and dw of each batch against float64 and for equal bits in two runs. spoiled: x and dy have NaN."""
    sizes, stream = case.sizes, cupy.cuda.Stream.null
    forward = conv_forward_kernel(architecture(), sizes, case.bias, case.activation)
    to_input, to_filters = conv_input_gradient_kernel(architecture(), sizes), ConvFilterGradient(architecture(), sizes)
    w = random(sizes.kernel, sizes.kernel, sizes.channels, sizes.maps)
    bias = random(sizes.maps, seed=1)
    for images in case.batches:
        x = random(images, sizes.channels, sizes.height, sizes.width, seed=2)
        dy = random(images, sizes.maps, *sizes.conv_output_size, seed=3)
        if spoiled:
            spoil(x)
            spoil(dy)
        results = []
        for _ in range(2):
            own_x, own_w, own_dy, own_bias = (memory.upload(array) for array in (x, w, dy, bias))
            y, dx, dw = (poisoned(array.size) for array in (dy, x, w))
            forward(stream, images, own_x, own_w, own_bias if case.bias else None, y)
            to_input(stream, images, own_dy, own_w, dx)
            to_filters(stream, images, own_x, own_dy, dw)
            results.append([fetched(*pair) for pair in ((y, dy.shape), (dx, x.shape), (dw, w.shape))])
        for first, second in zip(*results, strict=True):
            np.testing.assert_array_equal(first.view(np.uint32), second.view(np.uint32))
        with np.errstate(invalid="ignore"):
            exact = list(conv_products(x, w, dy, sizes.stride, sizes.padding))
            magnitude = list(conv_products(np.abs(x), np.abs(w), np.abs(dy), sizes.stride, sizes.padding))
        if case.bias:
            exact[0] += bias[:, None, None]
            magnitude[0] += np.abs(bias)[:, None, None]
        terms = (sizes.reduction_length, sizes.kernel**2 * sizes.maps, images * prod(sizes.conv_output_size))
        for at, activation in enumerate((case.activation, "", "")):
            check(results[0][at], exact[at], magnitude[at], terms[at], activation)
