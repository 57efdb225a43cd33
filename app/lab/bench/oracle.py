"""Make random data for any problem and compute its correct results in float64; tolerance.py defines the allowed error.

The code here is independent of the kernels and of libraries: it adds term by term in element-wise arithmetic, with CuPy
for arrays on the card, with NumPy for others.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import product
from math import prod
from operator import add
from typing import Any

import numpy as np

from app.kernels.plain_problems import ActivationProblem, ArgmaxProblem, Argument, ResizeProblem, SoftmaxProblem
from app.kernels.problems import (
    ConvPairProblem,
    ConvProblem,
    LinearPairProblem,
    LinearProblem,
    PairProblem,
    PoolProblem,
    Problem,
)
from app.kernels.variant import Variant
from app.lab.bench.tolerance import Expected, WeightLayer, has_rounded_operands, has_split_operands, round_pair_operands
from app.layers import activation_layer
from app.network.pruning import keep_two_of_four

Array = Any  # of NumPy or CuPy


def array_module(x: Array) -> Any:
    """Return the module for computing with x: CuPy for an array on the card, otherwise NumPy."""
    if isinstance(x, np.ndarray):
        return np
    import cupy

    return cupy


def expected_results(problem: Problem, x: Array, *parameters: Array | None) -> Expected:
    """Return the correct results for x (images, elements). parameters: weights and biases, as the problem lists them.

    Results are (images, elements per image) float64; for a problem that ends in an argmax, the scores before it.
    """
    match problem:
        case ConvProblem() | LinearProblem():
            found = _layer_values_and_magnitudes(problem, x, *parameters)
        case ConvPairProblem() | LinearPairProblem():
            found = _pair_values_and_magnitudes(problem, x, *parameters)
        case PoolProblem():
            maps = x.astype(np.float64).reshape(-1, problem.channels, problem.height, problem.width)
            found = [_pool_padded_maps(problem, values) for values in (maps, abs(maps))]
        case ResizeProblem():
            found = [_resize_images(problem, x.reshape(-1, *_image_shape(problem)))] * 2
        case ActivationProblem():
            values = _apply_activation(problem.function, x.astype(np.float64))
            found = [values, abs(values)]
        case SoftmaxProblem():
            found = [*_softmax_and_magnitude(x.astype(np.float64), None)]
        case ArgmaxProblem():
            values = x.astype(np.float64)
            found = [values, abs(values)]
    return Expected(*(array.reshape(len(x), -1) for array in found))


def apply_variant_error_bound(row: Variant, problem: Problem, found: Expected, x: Array, *parameters: Any) -> Expected:
    """Return ``found``, the ``expected_results`` of x, with the error bound of the kernel ``row`` if it defines one."""
    if row.error_bound is None or not isinstance(problem, ConvProblem):
        return found
    roundings, magnitude = row.error_bound(problem, x, *parameters)
    if problem.pool > 1:
        magnitude = _pool_maps(magnitude, problem.pool, problem.pool, problem.pool_is_max, problem.pooled_size)
    return replace(found, magnitude=magnitude.reshape(len(x), -1), roundings=roundings)


def _layer_values_and_magnitudes(problem: WeightLayer, x: Array, w: Array, bias: Array | None = None) -> list[Array]:
    """Return arrays as in ``Expected``: [exact, magnitude]; for rounded or split operands [exact, magnitude, plain]."""
    results = [_compute_layer_float64(problem, x, w, bias), _sum_absolute_terms(problem, x, w, bias)]
    if has_rounded_operands(problem) or has_split_operands(problem):
        narrow = _operand_rounder("float32" if has_split_operands(problem) else problem.dtype)
        rounded = None if problem.dtype == "tfloat32" else narrow
        results.append(_compute_layer_float64(problem, narrow(x), narrow(w), bias, rounded))
    return _softmax_results(results) if isinstance(problem, LinearProblem) and problem.softmax else results


def _pair_values_and_magnitudes(problem: PairProblem, x: Array, *parameters: Array | None) -> list[Array]:
    """Return the arrays of ``Expected`` for a pair of layers: exact, magnitude of the second layer, and plain.

    The plain implementation adds in float32 and stores each layer's result. It sums products of whole pixel values and
    scales the sum, as the kernels do: pixels scaled first would be exact at 255/255, but not at other values.
    """
    narrow = _operand_rounder("float16" if has_rounded_operands(problem) else "float32")
    if isinstance(problem, ConvPairProblem) and problem.resize is not None:
        x = _resize_images(problem.resize, x.reshape(-1, *_image_shape(problem.resize)))
    exact = plain = x.astype(np.float64)
    scale = problem.pixel_scale if isinstance(problem, ConvPairProblem) else 1.0
    magnitude = None
    halves: tuple[WeightLayer, ...] = (problem.first, problem.second)
    for half, w, bias in zip(halves, parameters[::2], parameters[1::2], strict=True):
        exact = exact * scale
        magnitude = _sum_absolute_terms(half, exact, w, bias)
        exact = _compute_layer_float64(half, exact, w, bias)
        operands = round_pair_operands(problem, half, plain, w, narrow)
        plain = _compute_layer_float64(half, *operands, bias, _operand_rounder("float32"), scale=scale)
        scale = 1.0
    results = [exact, magnitude, plain]
    return _softmax_results(results) if isinstance(problem, LinearPairProblem) and problem.second.softmax else results


def _softmax_results(results: list[Array]) -> list[Array]:
    """Convert results of scores, [exact, magnitude] or [exact, magnitude, plain], to those of the scores' softmax."""
    exact, magnitude, *plain = results
    return [*_softmax_and_magnitude(exact, magnitude), *(_softmax_and_magnitude(one, None)[0] for one in plain)]


def _softmax_and_magnitude(scores: Array, magnitude: Array | None) -> tuple[Array, Array]:
    """Return the softmax of scores (images, classes), and the magnitude with which its rounding errors scale.

    magnitude: of the scores, or None. An absolute error of a score is a relative error of its probability.
    """
    most = scores.max(axis=1, keepdims=True)
    powers = array_module(scores).exp(scores - most)
    values = powers / powers.sum(axis=1, keepdims=True)
    around = 1 + most - scores.min(axis=1, keepdims=True)
    errors = 0 if magnitude is None else 2 * magnitude.max(axis=1, keepdims=True)
    return values, values * (around + errors)


def _compute_layer_float64(
    problem: WeightLayer,
    x: Array,
    w: Array,
    bias: Array | None,
    rounded: Callable[[Array], Array] | None = None,
    *,
    scale: float = 1.0,
) -> Array:
    """Return the layer's float64 result, added term by term. rounded: rounds partial sums. scale: factor of the sum."""
    shape = (problem.maps, *problem.conv_output_size) if isinstance(problem, ConvProblem) else (problem.outputs,)
    sums = array_module(x).zeros((len(x), *shape))
    for a, b in _product_factors(problem, x.astype(np.float64), w.astype(np.float64)):
        sums += a * b
        if rounded is not None:
            sums = rounded(sums)
    if scale != 1 and rounded is not None:
        sums = rounded(sums * scale)
    if bias is not None:
        sums = sums + bias.astype(np.float64).reshape(-1, *(1,) * (len(shape) - 1))
    values = _apply_activation(problem.activation, sums)
    if isinstance(problem, ConvProblem) and problem.pool > 1:
        values = _pool_maps(values, problem.pool, problem.pool, problem.pool_is_max, problem.pooled_size)
    return values


def _apply_activation(function: str, x: Array) -> Array:
    """Return the activation of x (NumPy or CuPy), by the layer's reference, perhaps in place; x for no function."""
    return activation_layer(function).reference(x, {}) if function else x


def _sum_absolute_terms(problem: WeightLayer, x: Array, w: Array, bias: Array | None) -> Array:
    """Return the sums of the terms' absolute values, without activation: the magnitude of rounding errors."""
    magnitudes = (None if a is None else abs(a.astype(np.float64)) for a in (x, w, bias))
    return _compute_layer_float64(replace(problem, activation=""), *magnitudes)


def _product_factors(problem: WeightLayer, x: Array, w: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the factors of each product in a layer's sums, in the kernels' order: two arrays to broadcast together."""
    if isinstance(problem, LinearProblem):
        w = w.reshape(problem.inputs, problem.outputs)
        for k in range(problem.inputs):
            yield x[:, k, None], w[k]
        return
    channels, height, width, maps, kernel, stride = problem.sizes
    x, w = x.reshape(-1, channels, height, width), w.reshape(channels, kernel, kernel, maps)
    x = array_module(x).pad(x, ((0, 0), (0, 0), *[(problem.padding, problem.padding)] * 2))
    down, across = ((size - 1) * stride + 1 for size in problem.conv_output_size)
    for c, p, q in product(range(channels), range(kernel), range(kernel)):
        yield x[:, None, c, p : p + down : stride, q : q + across : stride], w[c, p, q][:, None, None]


def _operand_rounder(dtype: str) -> Callable[[Array], Array]:
    """Return a function that rounds float64 arrays as this arithmetic type rounds its operands."""
    if dtype == "tfloat32":
        return _to_tf32
    return lambda x: x.astype(dtype).astype(np.float64) if dtype in ("float16", "float32") else x


def _to_tf32(x: Array) -> Array:
    bits = array_module(x).ascontiguousarray(x.astype(np.float32)).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def _pool_maps(x: Array, window: int, stride: int, is_max: bool, size: tuple[int, int]) -> Array:
    """Return x (images, C, H, W) pooled to (images, C, *size); a mean counts only the pixels inside the image."""
    down, across = ((length - 1) * stride + 1 for length in size)
    margins = [(0, max(to + window - 1 - size, 0)) for to, size in zip((down, across), x.shape[2:], strict=True)]
    xp = array_module(x)

    def iterate_window_elements(maps: Array, outside_value: float) -> Iterator[Array]:
        if any(map(max, margins)):
            maps = xp.pad(maps, [(0, 0), (0, 0), *margins], constant_values=outside_value)
        for p, q in product(range(window), range(window)):
            yield maps[:, :, p : p + down : stride, q : q + across : stride]

    if is_max:
        return reduce(xp.maximum, iterate_window_elements(x, -np.inf))
    return reduce(add, iterate_window_elements(x, 0.0)) / reduce(
        add, iterate_window_elements(xp.ones((1, 1, *x.shape[2:])), 0.0)
    )


def _pool_padded_maps(problem: PoolProblem, x: Array) -> Array:
    """Return x (images, C, H, W) padded and pooled; padding is ignored, or zeros for a mean with count_padding."""
    window, padding = (problem.window, problem.stride, problem.is_max, problem.pooled_size), problem.padding
    sizes, xp, sides = x.shape[2:], array_module(x), [(padding, padding + problem.extra_padding)] * 2
    padded = xp.pad(x, [(0, 0), (0, 0), *sides], constant_values=-np.inf if problem.is_max else 0.0)
    pooled = _pool_maps(padded, *window)  # of a mean: what counts all padding
    if problem.is_max or problem.count_padding or not problem.padding + problem.extra_padding:
        return pooled
    inside = xp.pad(xp.ones((1, 1, *sizes)), [(0, 0), (0, 0), *sides])
    return pooled / _pool_maps(inside, *window)


def _image_shape(problem: ResizeProblem) -> tuple[int, int, int]:
    return problem.channels, problem.height, problem.width


def _resize_images(problem: ResizeProblem, x: Array) -> Array:
    """Return x (images, C, H, W) uint8 resized to float64 (images, C, size, size), rounded (rule edge) or truncated."""
    sums, unit = x.astype(np.float64), 2 * problem.size
    edge = problem.rule == "edge"
    for length in (problem.height, problem.width):
        centres = (np.arange(problem.size) + 0.5) * length / problem.size - 0.5
        places = centres.clip(0, length - 1) if edge else centres  # pixels outside the image have weight 0
        distances = abs(places[:, None] - np.arange(length))
        weights = array_module(x).asarray(np.rint((1 - distances).clip(0) * unit))  # whole numbers: the sums are exact
        sums = sum(weights[:, at, None] * sums[:, :, None, at] for at in range(length)).swapaxes(2, 3)
    return array_module(x).floor(sums / unit**2 + (0.5 if edge else 0))


def images_within_budget(problem: Problem, budget: int = 64 << 20) -> int:
    """Return how many images, at least one, the oracle can take if each of its arrays may have ``budget`` bytes."""
    sizes = [argument.per_image for argument in problem.arguments()]
    for half in (problem.first, problem.second) if isinstance(problem, PairProblem) else (problem,):
        if isinstance(half, ConvProblem):
            sizes += [half.channels * half.height * half.width, half.maps * prod(half.conv_output_size)]
    return max(budget // (8 * max(sizes)), 1)


def random_images(rng: np.random.Generator, argument: Argument, images: int) -> np.ndarray:
    """Return random input (images, elements per image): uniform bytes, or normally distributed numbers."""
    shape = (images, argument.per_image)
    if argument.dtype == "uint8":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return rng.standard_normal(shape, dtype=np.float32).astype(argument.dtype)


def random_parameters(rng: np.random.Generator, problem: Problem) -> list[np.ndarray | None]:
    """Return random weights and bias (or None), scaled so that results are near 1; [] for a problem without weights."""
    if isinstance(problem, PairProblem):
        both = [*random_parameters(rng, problem.first), *random_parameters(rng, problem.second)]
        if isinstance(problem, ConvPairProblem) and both[0] is not None:
            both[0] = both[0] / problem.pixel_scale
        if problem.exact:
            both = _round_weights_to_float16(both)
        if getattr(problem, "sparse", False) and both[2] is not None:
            both[2] = _prune_to_two_of_four(both[2])
        wanted = problem.arguments()[1:]
        return [None if a is None else a.astype(b.dtype) for a, b in zip(both, wanted, strict=False)]
    if not isinstance(problem, ConvProblem | LinearProblem):
        return []
    arguments = {argument.name: argument for argument in problem.arguments()}
    if isinstance(problem, ConvProblem):
        shape: tuple[int, ...] = (problem.channels, problem.kernel, problem.kernel, problem.maps)
    else:
        shape = (problem.inputs, problem.outputs)
    w = rng.standard_normal(shape) / np.sqrt(prod(shape[:-1])) / (128 if problem.input_dtype == "uint8" else 1)
    w = _prune_to_two_of_four(w) if getattr(problem, "sparse", False) else w
    bias = rng.standard_normal(shape[-1]).astype(arguments["bias"].dtype) if problem.bias else None
    parameters = [w.astype(arguments["w"].dtype), bias]
    return _round_weights_to_float16(parameters) if getattr(problem, "exact", False) else parameters


def _prune_to_two_of_four(w: np.ndarray) -> np.ndarray:
    """Return filters (C, K, K, M) in which of every four channels' weights only the two greatest are not 0."""
    return keep_two_of_four(w.reshape(len(w), -1)).reshape(w.shape)


def _round_weights_to_float16(parameters: list[np.ndarray | None]) -> list[np.ndarray | None]:
    """Return the parameters with weights rounded to float16. parameters: w and bias of each layer, in this order."""
    return [a if at % 2 or a is None else a.astype(np.float16).astype(a.dtype) for at, a in enumerate(parameters)]
