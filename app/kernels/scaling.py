"""Scale weights by powers of two that keep the numbers of tensor-core kernels in float16's range.

Scaling costs no time: sums, ReLU and pooling preserve a positive factor, and the next layer's weights are divided by
the factor of this layer's weights and bias. Every map and every hidden value has a separate factor, chosen by a bound
of its values over all images. The bound may be loose: a sum of two float16 keeps 22 bits down to 2**-18 of LARGEST, and
down to 2**-29 where the low half is scaled once more (LOW_SCALE), as in features and the products' weights.
"""

from collections.abc import Sequence

import numpy as np

from app.base.frozen import Frozen
from app.base.precision import INTEGERS
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearPairProblem, LinearProblem, PairProblem

Arrays = Sequence[np.ndarray | None]
Scalable = ConvPairProblem | ConvProblem | LinearProblem  # the next kernel may read their results as two float16
LARGEST = 30_000  # limit of scaled numbers; float16 ends at 65,504
SMALLEST_NORMAL = 2.0**-14  # float16's; smaller numbers lose bits
BRIGHTEST = 255.0  # greatest pixel
LARGEST_SCALE = 2.0**120  # also that of zeros, which may have any scale
# Biases that are greater, relative to the weights, would make float32 lose the products.
LARGEST_BIAS1, LARGEST_BIAS2 = 2.0**30, 2.0**40
# The kernels' factors and the second matrix of the products are float32: within these limits they keep all bits.
SMALLEST, GREATEST = 2.0**-80, 2.0**80
GREATEST_WEIGHT2 = 2.0**50
LOW_SCALE = 2048  # factor of the low halves in a matrix product
UNEVEN = 2.0**-14  # smallest accepted ratio of two maps' features without scaling
# Smallest accepted bound of features that are split without scaling: two float16 end at 2**-36, and a bound is loose.
SMALLEST_SPLIT = 2.0**-4
# Activations that preserve no factor, with their greatest magnitude, which float16 represents.
BOUNDED = {"tanh": 1.0, "sigmoid": 1.0, "relu6": 6.0}
OF_BYTES = 2.0**-4, 2.0**12  # accepted bounds of the greatest activation in int8, where 255 stands for 1
# Most layers whose bounds are multiplied without a bounded activation between. Each bound is up to about 2**6 times the
# values of real images, and two float16 with a LOW_SCALE keep all bits down to 2**-29 of LARGEST.
MOST_LAYERS = 4
MOST_LAYERS_OF_HALVES = 2  # without a LOW_SCALE: they then keep all bits down to 2**-18 of LARGEST


class FeatureScaling(Frozen):
    """The scales and bounds of a kernel's results: (maps,) float64 each.

    scales: powers of two by which the results are multiplied; the next kernel's weights are divided by them. bounds:
    greatest magnitudes of the scaled results. layers: number of layers whose bounds these combine.
    """

    scales: np.ndarray
    bounds: np.ndarray
    layers: int


class InexactError(Exception):
    """Raised by ``float16_parts`` if weights that a problem declares exact are not exact in float16."""


def power_of_two_scales(largest: np.ndarray | float) -> np.ndarray:
    """Return for each number the power of two that scales it to between LARGEST / 2 and LARGEST: float64, same shape.

    Zeros get LARGEST_SCALE, infinite numbers and NaN get 1.
    """
    largest = np.asarray(largest, np.float64)
    usable = np.isfinite(largest) & (largest > 0)
    _, exponents = np.frexp(LARGEST / np.where(usable, largest, 1.0))
    return np.where(usable, np.ldexp(1.0, exponents - 1), np.where(largest == 0, LARGEST_SCALE, 1.0))


def layer_scale(weights: np.ndarray, bias: np.ndarray | None = None) -> float:
    """Return one power of two that scales all weights of a layer to at most LARGEST; a large bias makes it smaller."""
    largest = np.abs(weights).max()
    if bias is not None:
        largest = np.maximum(largest, np.abs(bias).max() / LARGEST_BIAS2)
    return min(float(power_of_two_scales(largest)), LARGEST_SCALE)


def split_float16(values: np.ndarray, low_scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Split float64 into (high, low): the nearest float16, and the remainder times ``low_scale`` as float16."""
    high = values.astype(np.float16)
    return high, ((values - high) * low_scale).astype(np.float16)


def round_to_tf32(values: np.ndarray) -> np.ndarray:
    """Round float32 to tfloat32, the tensor cores' input: 11 significant bits, ties away from zero."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def split_tf32(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split float32 into two tfloat32 (float32 with 11 significant bits), (high, low), of the same shape.

    high + low approximates a finite number to about 22 bits. For infinities and NaN, high is the number and low is 0.
    """
    high = _round_finite_to_tf32(values)
    return high, _round_finite_to_tf32(np.subtract(values, high, out=np.zeros_like(high), where=np.isfinite(high)))


def _round_finite_to_tf32(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), round_to_tf32(values), values)


def float16_parts(
    problem: PairProblem | ConvProblem | LinearProblem, values: np.ndarray, low_scale: float = 1.0
) -> list[np.ndarray]:
    """Return float64 weights of any shape as float16: [rounded], or [high, low] if split. Raises InexactError."""
    if problem.weight_parts == 2:
        return [*split_float16(values, low_scale)]
    rounded = values.astype(np.float16)
    if problem.exact and not (rounded == values).all():
        raise InexactError
    return [rounded]


def float32_bias(bias: np.ndarray | None) -> np.ndarray | None:
    """Convert a bias to float32, the type in which kernels add it; None stays None."""
    return None if bias is None else bias.astype(np.float32)


def feature_bounds(problem: Scalable, arrays: Arrays, source: FeatureScaling | None = None) -> np.ndarray:
    """Return an upper bound of each result map's magnitude over all possible images: (maps,) float64.

    arrays: the problem's parameters. source: bounds of a single layer's input; None if the layer reads bytes.
    """
    with np.errstate(invalid="ignore"):  # infinite weights
        if isinstance(problem, ConvPairProblem):
            w2 = _flatten_filters(problem, arrays)[1]
            return _output_bounds(w2, arrays[3], activation_bounds(problem, arrays), problem.second.activation)
        w, bias = arrays
        assert w is not None
        maps = problem.maps if isinstance(problem, ConvProblem) else problem.outputs
        inputs = np.full(1, BRIGHTEST) if source is None else source.bounds
        return _output_bounds(w.astype(np.float64).reshape(len(inputs), -1, maps), bias, inputs, problem.activation)


def activation_bounds(problem: ConvPairProblem, arrays: Arrays) -> np.ndarray:
    """Return an upper bound of each map between two convolutions over all possible images: (maps,) float64."""
    pixels = np.full(problem.first.channels, BRIGHTEST * problem.pixel_scale)
    return _output_bounds(_flatten_filters(problem, arrays)[0], arrays[1], pixels, problem.first.activation)


def activation_scales(problem: ConvPairProblem, arrays: Arrays) -> np.ndarray:
    """Return the power of two that brings each map between two convolutions close to LARGEST: (maps,) float64."""
    return power_of_two_scales(activation_bounds(problem, arrays))


def balance_convolutions(problem: ConvPairProblem, arrays: Arrays) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Scale (w1, bias1, w2, bias2) for float16; return w1 (K², maps), bias1, w2 (channels, K², maps), all float64.

    The sum of four activations of a map can then come close to LARGEST, and exceeds it for no image.
    """
    w1, w2 = _flatten_filters(problem, arrays)
    scales = power_of_two_scales(4 * _output_bounds(w1, arrays[1], np.full(len(w1), BRIGHTEST)))
    bias1 = None if arrays[1] is None else arrays[1].astype(np.float64) * scales
    return (w1 * scales).reshape(-1, len(scales)), bias1, w2 / scales[:, None, None]


def scale_features(
    problem: Scalable, arrays: Arrays, source: FeatureScaling | None = None
) -> tuple[tuple[np.ndarray | None, ...], FeatureScaling | None]:
    """Scale the last layer's parameters to bring results close to LARGEST; return all parameters and the scaling.

    source: as for ``feature_bounds``. Factors are 1 if the activation preserves no factor. The scaling is None if
    results may be too small for float16, or if the bounds combine too many layers.
    """
    *others, weights, bias = arrays
    assert weights is not None
    bounds = feature_bounds(problem, arrays, source)
    last, layers = (problem.second, 2) if isinstance(problem, ConvPairProblem) else (problem, 1)
    if last.activation in BOUNDED:
        in_range = _all_in_range(bounds, SMALLEST_SPLIT, LARGEST)
        return (*others, weights, bias), FeatureScaling(np.ones(len(bounds)), bounds, 0) if in_range else None
    layers += source.layers if source else 0
    if layers > MOST_LAYERS:
        return (*others, weights, bias), None
    scales = power_of_two_scales(bounds)
    scaled_bias = None if bias is None else _scale_in_dtype(bias, scales)
    return (*others, _scale_in_dtype(weights, scales), scaled_bias), FeatureScaling(scales, bounds * scales, layers)


def unscale_features(arrays: Arrays, scales: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Divide the rows of the first matrix, (maps x pixels, hidden), by its inputs' scales; return all parameters.

    arrays: the matrix and the other parameters, which do not change. scales: (maps,) float64.
    """
    w1, *rest = arrays
    assert w1 is not None
    return _scale_in_dtype(w1.reshape(len(scales), -1), 1 / scales[:, None]).reshape(w1.shape), *rest


def balance_products(problem: LinearPairProblem, arrays: Arrays) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Scale (w1, bias1, w2, bias2); return w1 (inputs, hidden), bias1, w2 (hidden, outputs), all float64.

    The greatest weight of each hidden value is then close to LARGEST.
    """
    first, bias1, second, _ = arrays
    assert first is not None and second is not None
    w1 = first.astype(np.float64).reshape(problem.first.inputs, problem.first.outputs)
    w2 = second.astype(np.float64).reshape(problem.second.inputs, problem.second.outputs)
    largest = np.abs(w1).max(axis=0)
    if bias1 is not None:
        largest = np.maximum(largest, np.abs(bias1) / LARGEST_BIAS1)
    scales = power_of_two_scales(largest)
    return w1 * scales, None if bias1 is None else bias1 * scales, w2 / scales[:, None]


def scale_per_output(problem: ConvProblem | LinearProblem, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Scale a layer's weights by a power of two for each output or map; return weights (terms, outputs) and factors."""
    w = arrays[0]
    assert w is not None
    outputs = problem.maps if isinstance(problem, ConvProblem) else problem.outputs
    w = w.astype(np.float64).reshape(-1, outputs)
    scales = power_of_two_scales(np.abs(w).max(axis=0))
    return w * scales, scales


def fits_float16(problem: PairProblem | ConvProblem | LinearProblem, arrays: Arrays) -> bool:
    """Return whether one or two float16 represent all numbers of the layers without relevant loss, for any image.

    arrays: the problem's parameters. Matrix products read features of at most LARGEST, unless the problem is
    ``unbounded``. Features that convolutions store must be in range.
    """
    if not all(array is None or np.isfinite(array).all() for array in arrays):
        return False
    of_tf32 = not problem.bounded if isinstance(problem, ConvProblem) else getattr(problem, "unbounded", False)
    if of_tf32:  # it has float32's range
        return arrays[0] is not None and _all_in_range(np.abs(arrays[0]).max(), SMALLEST, GREATEST)
    if isinstance(problem, ConvProblem | LinearProblem):
        _, scales = scale_per_output(problem, arrays)
        return _all_in_range(np.where(scales == LARGEST_SCALE, 0, scales), SMALLEST, GREATEST)
    if isinstance(problem, LinearPairProblem):
        _, _, w2 = balance_products(problem, arrays)
        # Where features were scaled, float32's loss is negligible beside such scores, or was multiplied by more.
        usual = arrays[2] is not None and np.abs(arrays[2]).max() <= GREATEST_WEIGHT2
        return usual and _all_in_range(np.abs(w2).max(), SMALLEST, GREATEST)
    # Else the first convolution's filters could leave float16's range.
    if problem.dtype == INTEGERS and not _all_in_range(activation_bounds(problem, arrays).max(), *OF_BYTES):
        return False
    bounds = feature_bounds(problem, arrays)
    in_half = problem.second.output_dtype == "float16"
    smallest, greatest = (SMALLEST_NORMAL, LARGEST) if in_half else (SMALLEST, GREATEST)
    return _all_in_range(bounds, max(smallest, UNEVEN * bounds.max()), greatest)


def _flatten_filters(problem: ConvPairProblem, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return both convolutions' weights as (channels, K², maps) float64."""
    w1, w2 = arrays[0], arrays[2]
    assert w1 is not None and w2 is not None
    first, second = problem.first, problem.second
    return (
        w1.astype(np.float64).reshape(first.channels, first.kernel**2, first.maps),
        w2.astype(np.float64).reshape(second.channels, second.kernel**2, second.maps),
    )


def _output_bounds(
    weights: np.ndarray, bias: np.ndarray | None, inputs: np.ndarray, activation: str = ""
) -> np.ndarray:
    """Return an upper bound of each output's magnitude after ``activation``: (outputs,) float64.

    weights: (channels, taps, outputs). bias: (outputs,). inputs: (channels,), greatest magnitude in each channel.
    """
    sums = inputs @ np.abs(weights).sum(axis=1)
    shift = np.zeros(len(sums)) if bias is None else bias.astype(np.float64)
    if activation == "sigmoid":
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-(sums + shift)))
    bounds = sums + np.abs(shift)
    return np.minimum(bounds, BOUNDED.get(activation, np.inf))


def _scale_in_dtype(array: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Multiply an array by powers of two in its own type: exact, except for numbers that leave its range."""
    with np.errstate(over="ignore"):  # infinite results are refused later
        return (array * scales).astype(array.dtype)


def _all_in_range(numbers: np.ndarray, smallest: float, greatest: float) -> bool:
    """Return whether every number but zeros is at least ``smallest`` and at most ``greatest``."""
    return bool(((numbers == 0) | ((numbers >= smallest) & (numbers <= greatest))).all())
