"""Make random operands for any problem, and compute its correct results by the layers' NumPy references."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from typing import Any
from zlib import crc32

import numpy as np

from app.base.precision import epilogue_dtype, storage_dtype
from app.kernels.plain_problems import ActivationProblem, ResizeProblem, SoftmaxProblem
from app.kernels.problems import (
    ConvPairProblem,
    ConvProblem,
    LinearProblem,
    PairProblem,
    PlainProblem,
    PoolProblem,
    Problem,
    tuning_key,
)
from app.kernels.variant import Variant
from app.lab.bench import tolerance
from app.lab.bench.tolerance import Expected, activation_name, allowed_errors, has_rounded_operands, has_split_operands
from app.layers import Activation, Argmax, AvgPool, Conv2d, Layer, Linear, MaxPool, Resize, Softmax, activation_layer
from tests.support.kernel_cases import input_shape
from tests.support.sparsity import thinned

Single = ConvProblem | LinearProblem | PlainProblem
Operands = tuple[np.ndarray, dict[str, np.ndarray]]  # images (B, *shape), and parameters as in a weights file


def layers_of(problem: Problem, name: str = "layer") -> list[Layer]:
    """Return the layers whose references define the problem's correct results, without a fused argmax.

    name: of the layer with parameters; the layers of a pair get 1 and 2 behind it.
    """
    if isinstance(problem, PairProblem):
        return [*layers_of(problem.first, f"{name}1"), *layers_of(problem.second, f"{name}2")]
    function = activation_name(problem)
    activation: list[Layer] = [activation_layer(function, "activation")] if function else []
    match problem:
        case ConvProblem():
            pool = (MaxPool if problem.pool_is_max else AvgPool)("pool", problem.pool, ceil=problem.pool_ceil)
            conv = Conv2d(name, problem.maps, problem.kernel, problem.stride, problem.padding)
            return [conv, *activation, *([pool] if problem.pool > 1 else [])]
        case LinearProblem():
            return [Linear(name, problem.outputs), *activation, *([Softmax("softmax")] if problem.softmax else [])]
        case PoolProblem():
            rule = problem.window, problem.stride, problem.ceil, problem.padding, problem.extra_padding
            return [MaxPool("pool", *rule) if problem.is_max else AvgPool("pool", *rule, problem.count_padding)]
        case ResizeProblem():
            return [Resize("resize", problem.size, problem.rule)]
        case ActivationProblem():
            return activation
        case SoftmaxProblem():
            return [Softmax("softmax")]
    return [Argmax("argmax")]


def sums_half(row: Variant) -> bool:
    """Return whether the row rounds every partial sum to float16."""
    return (row.operation, row.technique) == ("conv", "half2")


@cache
def drawn(problem: Problem, images: int) -> Operands:
    """Return random operands that give results around 1, float64 or bytes. problem: from ``base``."""
    rng = np.random.default_rng(crc32(tuning_key(problem).encode()))
    shape = (images, *input_shape(problem))
    is_bytes = problem.arguments()[0].dtype == "uint8"
    x = rng.integers(0, 256, shape).astype(np.uint8) if is_bytes else rng.standard_normal(shape)
    parameters = {}
    for name, size in layers_of(problem)[0].parameter_shapes(shape[1:]).items():
        if not name.endswith("_bias"):
            parameters[name] = rng.standard_normal(size) / (np.sqrt(np.prod(size[:-1])) * (128 if is_bytes else 1))
        elif getattr(problem, "bias", False):
            parameters[name] = rng.standard_normal(size)
    return x, parameters


def base(problem: Single) -> Single:
    """Return the problem in float32 (bytes stay bytes), so that variants of one problem get the same operands."""
    if isinstance(problem, ResizeProblem):
        return problem
    if not isinstance(problem, ConvProblem | LinearProblem):
        return replace(problem, dtype="float32")
    read = "uint8" if problem.input_dtype == "uint8" else "float32"
    return replace(problem, dtype="float32", input_dtype=read, output_dtype="float32")


def operands(problem: Problem, images: int) -> Operands:
    """Return the reference's operands, float64 or uint8: rounded to the storage type, not to the arithmetic type."""
    if isinstance(problem, PairProblem):
        (x, first), (_, second) = operands(problem.first, images), operands(problem.second, 1)
        if isinstance(problem, ConvPairProblem):
            x = x if problem.resize is None else operands(problem.resize, images)[0]
            first = {**first, "layer": first["layer"] / (4 if problem.dtype == "int8" else problem.pixel_scale)}
        both = {"layer1": held(problem, first), "layer2": held(problem, thinned(problem, second))}
        return x, {name.replace("layer", own): array for own, given in both.items() for name, array in given.items()}
    x, arrays = drawn(base(problem), images)
    if isinstance(problem, ConvProblem | LinearProblem):
        arrays = held(problem, thinned(problem, arrays))
    if has_rounded_operands(problem):
        return x, arrays
    stored = getattr(problem, "input_dtype", problem.dtype)
    x = x if x.dtype == np.uint8 else _as_stored(x, stored)
    return x, {name: _as_stored(array, epilogue_dtype(problem.dtype)) for name, array in arrays.items()}


def held(problem: Any, parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a layer's parameters, with weights rounded to float16 if the problem is ``exact``."""
    return {**parameters, "layer": _as_stored(parameters["layer"], "float16")} if problem.exact else parameters


def _as_stored(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype).astype(np.float64)


def run(layers: Sequence[Layer], x: np.ndarray, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the result of the layers' references in the float type of x, flat, as float64."""
    return np.ascontiguousarray(through(layers, x, parameters)).ravel().astype(np.float64)


def through(layers: Sequence[Layer], x: np.ndarray, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the result of the layers' references, one after the other, in the float type of x."""
    x = x.copy()  # a reference may work in place
    for layer in layers:
        x = layer.reference(x, parameters)
    return x


@cache
def _expected(problem: Problem, images: int, in_half: bool) -> Expected:
    x, parameters = operands(problem, images)
    return expected_of(problem, x.astype(np.float64), parameters, in_half)


def expected_of(
    problem: Problem, x: np.ndarray, parameters: Mapping[str, np.ndarray], in_half: bool = False
) -> Expected:
    """Return the correct results for these float64 operands; all arrays are flat."""
    layers = layers_of(problem)
    if isinstance(problem, ConvPairProblem):  # what the first layer reads
        if problem.resize is not None:
            x = through(layers_of(problem.resize), x.astype(np.uint8), {}).astype(np.float64)
        x = x * problem.pixel_scale
    if isinstance(problem, ResizeProblem):
        exact = run(layers, x.astype(np.uint8), parameters)
        return Expected(exact, exact)
    exact = run(layers, x, parameters)
    if isinstance(problem, PairProblem):
        between = through(layers_of(problem.first, "layer1"), x, parameters)
        magnitude = magnitudes(problem.second, layers_of(problem.second, "layer2"), between, parameters, exact)
        return Expected(exact, magnitude, plain_pair(problem, x, parameters))
    if isinstance(problem, ActivationProblem):
        magnitude = np.abs(exact)
    elif isinstance(problem, SoftmaxProblem):
        magnitude = of_probabilities(exact, x, np.zeros_like(x))
    else:
        magnitude = magnitudes(problem, layers, x, parameters, exact)
    if not has_rounded_operands(problem) and not has_split_operands(problem):
        return Expected(exact, magnitude)
    return Expected(exact, magnitude, plain(problem, x, parameters, in_half))


def magnitudes(problem: Problem, layers: Sequence[Layer], x: Any, parameters: Any, exact: np.ndarray) -> np.ndarray:
    """Return, flat, magnitudes to which the rounding errors of one layer's results are proportional."""
    linear = [layer for layer in layers if not isinstance(layer, Activation | Softmax)]
    found = run(linear, np.abs(x), {name: np.abs(array) for name, array in parameters.items()})
    softmax = getattr(problem, "softmax", False)
    return of_probabilities(exact, through(linear, x, parameters), found) if softmax else found


def of_probabilities(exact: np.ndarray, scores: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    """Return, flat, magnitudes to which a softmax's rounding errors are proportional. exact: the probabilities."""
    # The exponent, x - max x, is rounded: its error, relative to 1, is the result's, relative to itself.
    errors = 1 + np.ptp(scores, axis=1) + 2 * magnitude.reshape(scores.shape).max(axis=1)
    return exact * np.repeat(errors, scores.shape[1])


def expected(problem: Problem, images: int, row: Variant) -> Expected:
    """Return the row's correct results, before they are rounded to the output's storage type."""
    if isinstance(problem, ConvProblem | LinearProblem):
        # However x is stored, the arithmetic types that round their operands are held against unrounded ones.
        read = "float32" if has_rounded_operands(problem) and problem.input_dtype != "uint8" else problem.input_dtype
        problem = replace(problem, output_dtype="float32", input_dtype=read)
    return bounded(row, problem, _expected(problem, images, sums_half(row)), *operands(problem, images))


def bounded(
    row: Variant, problem: Problem, found: Expected, x: np.ndarray, parameters: Mapping[str, np.ndarray]
) -> Expected:
    """Return ``found`` with the row's error bound, if it defines one. x, parameters: as in a weights file."""
    if row.error_bound is None or not isinstance(problem, ConvProblem):
        return found
    weights, bias = parameters["layer"].transpose(2, 0, 1, 3), parameters.get("layer_bias")
    roundings, magnitude = row.error_bound(problem, x, weights, bias)
    if problem.pool > 1:
        pool = (MaxPool if problem.pool_is_max else AvgPool)("pool", problem.pool, ceil=problem.pool_ceil)
        magnitude = pool.reference(magnitude, {})
    return replace(found, magnitude=magnitude.ravel(), roundings=roundings)


def plain(problem: Problem, x: np.ndarray, parameters: Mapping[str, np.ndarray], in_half: bool) -> np.ndarray:
    """Return a plain implementation's results with rounded operands and sums in float32, or in half with ``in_half``.

    For split operands, the implementation is plain float32, term by term.
    """
    if isinstance(problem, ConvProblem | LinearProblem) and has_split_operands(problem):
        y = rounded_layer(problem, x, parameters["layer"], parameters.get("layer_bias"), to_single)
        return run(layers_of(problem)[1:], y, {})
    narrow = to_half if storage_dtype(problem.dtype) == "float16" else to_tf32
    x, weights = narrow(x), narrow(parameters["layer"])
    bias = {name: array.astype(np.float32) for name, array in parameters.items() if name.endswith("_bias")}
    conv, *rest = layers_of(problem)
    if not in_half:
        return run([conv, *rest], x, {"layer": weights, **bias})
    assert isinstance(problem, ConvProblem)
    y = term_by_term(problem, x, weights.transpose(2, 0, 1, 3), to_half)
    for array in bias.values():
        y = y + array[:, None, None]
    return run(rest, y, {})


def plain_pair(problem: PairProblem, x: np.ndarray, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a plain implementation's results of a pair: rounded operands and stored results, sums in float32."""
    narrow = to_half if has_rounded_operands(problem) else to_single
    y = x
    halves: tuple[ConvProblem | LinearProblem, ...] = (problem.first, problem.second)
    for half, name in zip(halves, ("layer1", "layer2"), strict=True):
        operands = tolerance.round_pair_operands(problem, half, y, parameters[name], narrow)
        y = rounded_layer(half, *operands, parameters.get(f"{name}_bias"), to_single)
        y = through(layers_of(half, name)[1:], y, {})
    return y.ravel().astype(np.float64)


def rounded_layer(
    problem: ConvProblem | LinearProblem, x: np.ndarray, weights: np.ndarray, bias: Any, narrow: Callable[[Any], Any]
) -> np.ndarray:
    """Return a layer's result without activation: operands rounded by ``narrow``, sums in float32, term by term."""
    x, weights = narrow(x).astype(np.float64), narrow(weights)
    if isinstance(problem, ConvProblem):
        y = term_by_term(problem, x, weights.transpose(2, 0, 1, 3), to_single)
    else:
        products = (x[:, k, None] * row for k, row in enumerate(weights.astype(np.float64)))
        y = reduce(lambda sums, product: to_single(sums + product), products, np.zeros((1, 1), np.float32))
    return y if bias is None else y + bias.astype(np.float32).reshape(-1, *(1,) * (y.ndim - 2))


def term_by_term(problem: ConvProblem, x: Any, w: Any, rounded: Callable[[Any], Any]) -> Any:
    """Return x (B, C, H, W) convolved with w (C, K, K, M), each partial sum rounded, in the order c, p, q."""
    around = (problem.padding, problem.padding)
    x = np.pad(x, ((0, 0), (0, 0), around, around))
    down, across = ((size - 1) * problem.stride + 1 for size in problem.conv_output_size)
    sums = np.zeros_like(x, shape=(len(x), problem.maps, *problem.conv_output_size))
    for c, p, q in np.ndindex(problem.channels, problem.kernel, problem.kernel):
        window = x[:, None, c, p : p + down : problem.stride, q : q + across : problem.stride]
        sums = rounded(sums + window * w[c, p, q][:, None, None])
    return sums


def to_half(x: Any) -> Any:
    """Return x rounded to float16, as float32."""
    return x.astype(np.float16).astype(np.float32)


def to_single(x: Any) -> Any:
    """Return x rounded to float32."""
    return x.astype(np.float32)


def to_tf32(x: Any) -> Any:
    """Return x rounded to 11 significant bits, ties away from zero, as float32."""
    bits = np.ascontiguousarray(x.astype(np.float32)).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def check(y: Any, problem: Problem, expected: Expected) -> float:
    """Compare a flat result with the expected one; return the greatest error ÷ its allowed error.

    y may have fewer images; then the RMS, a property of the whole tensor, is not compared.
    Raises AssertionError that names the worst element.
    """
    each, most_rms = allowed_errors(problem, expected)
    y, exact, each = y.astype(np.float64), expected.exact.reshape(-1)[: y.size], each.reshape(-1)[: y.size]
    error = np.abs(y - exact)
    excess = error - each
    excess[excess != excess] = np.inf
    worst = int(excess.argmax())
    # Written so that NaN, an element never written, fails.
    assert bool((error <= each).all()), (
        f"element {worst} of {y.size} is {float(y[worst]):.9g}, must be {float(exact[worst]):.9g} "
        f"within {float(each[worst]):.3g} ({int((~(error <= each)).sum())} elements are wrong): {problem}"
    )
    if y.size == expected.exact.size:
        rms = tolerance.rms(error)
        assert rms <= most_rms, f"RMS of the errors is {rms:.3g}, at most {most_rms:.3g}: {problem}"
    return float((error / np.maximum(each, 1e-300)).max())
