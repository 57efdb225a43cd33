"""Test each layer's NumPy reference against ONNX Runtime and against the networks' oracle in float64."""

import math
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from app.layers import (
    ACTIVATIONS,
    Activation,
    Argmax,
    AvgPool,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    MaxPool,
    Relu,
    Relu6,
    Shape,
    Sigmoid,
    Softmax,
    Tanh,
)
from app.layers.flatten import channels_first_permutation
from app.layers.pool import Pool
from app.network.definitions import Network
from tests.support.network_oracle import Described, computed, shape_after
from tests.support.oracle import onnx_outputs

FLOATS = [np.float32, np.float64]
POOLS = [AvgPool, MaxPool]

# Layer and input shape: filters 1..7, strides 1..3, height and width that differ and leave rows and columns over.
CONVS = [
    (
        Conv2d("conv", maps=1 + (kernel + stride) % 4, kernel=kernel, stride=stride),
        (1 + (kernel + stride) % 2 * 2, kernel + 5, kernel + 2),
    )
    for kernel in range(1, 8)
    for stride in range(1, 4)
]
# Some padding and the most possible; images smaller than the filter, which fit with their padding.
PADDED = [
    (Conv2d("conv", maps=3, kernel=kernel, stride=stride, padding=padding), (2, height, width))
    for kernel, height, width in [(2, 1, 4), (3, 1, 1), (3, 8, 5), (4, 2, 7), (5, 9, 3), (7, 1, 12), (7, 2, 3)]
    for stride in range(1, 4)
    for padding in {1, kernel // 2, kernel - 1}
    if min(height, width) + 2 * padding >= kernel
]
POOLINGS = [
    (pool("pool", window, stride, ceil), shape)
    for pool in POOLS
    for ceil in (False, True)
    for window in (2, 3, 4)
    for stride in (None, 1, 5)
    for shape in [((1, 9, 7), (3, 4, 11))[(window + (stride or 0) + ceil) % 2]]
]
# Padding before, on both sides or more behind; images smaller than the window.
POOLINGS += [
    (pool("pool", window, stride, ceil, padding, extra), shape)
    for pool in POOLS
    for ceil in (False, True)
    for window, padding, extra in ((2, 1, 0), (2, 0, 1), (3, 1, 0), (3, 1, 1), (4, 2, 0), (5, 1, 2), (5, 4, 0))
    for stride in (None, 1, 3)
    for shape in [((1, 9, 7), (3, 4, 11), (2, 1, 3))[(window + (stride or 0) + ceil) % 3]]
    if min(shape[1:]) + 2 * padding + extra >= window
]
POOLINGS += [
    (replace(layer, count_padding=True), shape)
    for layer, shape in POOLINGS
    if isinstance(layer, AvgPool) and layer.is_padded
]
OTHERS: list[tuple[Layer, Shape]] = [
    *((activation("activation"), shape) for activation in ACTIVATIONS.values() for shape in ((3, 5, 4), (17,))),
    (Softmax("softmax"), (10,)),
    (Softmax("softmax"), (300,)),
    (Softmax("softmax"), (1,)),
    (Flatten("flatten"), (3, 5, 4)),
    (Flatten("flatten"), (1, 2, 3)),
    (Linear("fc", outputs=7), (19,)),
    (Linear("fc", outputs=1), (1,)),
]


def _test_id(case: object) -> str:
    if isinstance(case, Conv2d):
        return f"conv-k{case.kernel}-s{case.stride}-p{case.padding}"
    if isinstance(case, Pool):
        padded = f"-padded-{case.padding}-{case.extra_padding}" * case.is_padded
        counted = "-counted" * getattr(case, "count_padding", False)
        return f"{case.kind}-{case.window}-by-{case.effective_stride}" + "-ceil" * case.ceil + padded + counted
    if isinstance(case, bool):
        return "bias" if case else "no-bias"
    return case.kind if isinstance(case, Layer) else "x".join(map(str, case)) if isinstance(case, tuple) else str(case)


def _random_arrays(layer: Layer, shape: Shape, bias: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(prod(shape))
    wanted = layer.parameter_shapes(shape)
    names = [name for name in wanted if bias or not name.endswith("_bias")]
    return {
        name: rng.normal(0, 1 / np.sqrt(prod(wanted[layer.name][:-1])), wanted[name]).astype(np.float32)
        for name in names
    }


def _random_inputs(shape: Shape, dtype: type, images: int = 3) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=(images, *shape)).astype(dtype)


ALL = pytest.mark.parametrize(
    ("layer", "shape", "bias"),
    [
        (layer, shape, bias)
        for layer, shape in [*CONVS, *PADDED, *POOLINGS, *OTHERS]
        for bias in ((False, True) if layer.parameter_shapes(shape) else (False,))
    ],
    ids=_test_id,
)


@pytest.mark.grid
@ALL
def test_a_layer_agrees_with_the_networks_oracle_and_onnx_runtime(layer: Layer, shape: Shape, bias: bool) -> None:
    """In float64 it agrees with the oracle, an independent implementation; in float32 with ONNX Runtime."""
    arrays, x = _random_arrays(layer, shape, bias), _random_inputs(shape, np.float64, images=2)
    settings = {name: value for name, value in vars(layer).items() if name != "name" and value is not None}
    described = Described(layer.kind, layer.name, settings, shape, shape_after(layer.kind, settings, shape))
    atol = 1e-12 if isinstance(layer, Conv2d) else 1e-14
    expected = computed(described, x, arrays)
    np.testing.assert_allclose(layer.reference(x.copy(), arrays), expected, rtol=0, atol=atol, strict=True)
    x = _random_inputs(shape, np.float32)
    expected = onnx_outputs(Network("alone", "one layer", shape, (layer,)), arrays, x)[layer.name]
    np.testing.assert_allclose(layer.reference(x.copy(), arrays), expected, rtol=0, atol=1e-5, strict=True)


@pytest.mark.parametrize("layer", [Conv2d("c", 2, 3), AvgPool("p", 2), MaxPool("p", 2), Flatten("f")], ids=_test_id)
def test_strides_of_the_input_do_not_matter(layer: Layer) -> None:
    arrays = {"c": np.ones((3, 3, 4, 2), np.float32)}
    x = _random_inputs((4, 6, 5), np.float64)
    channels_last = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    assert not channels_last.flags.c_contiguous
    np.testing.assert_allclose(layer.reference(channels_last, arrays), layer.reference(x, arrays), rtol=1e-14)


@pytest.mark.parametrize("dtype", FLOATS)
def test_argmax_takes_the_first_among_equals_and_prefers_nan(dtype: type) -> None:
    numbers = [[1, 3, 3, 0], [5, 5, 5, 5], [-2, -3, -1, -np.inf], [-np.inf] * 4]
    scores: np.ndarray = np.array([*numbers, [np.inf, np.nan, 2, np.nan], [1, 2, 3, np.nan]], dtype)
    labels = Argmax("argmax").reference(scores, {})
    np.testing.assert_array_equal(labels, np.array([1, 0, 2, 0, 1, 3], np.uint8), strict=True)


def test_argmax_labels_reach_255() -> None:
    np.testing.assert_array_equal(Argmax("argmax").reference(np.eye(256), {}), np.arange(256, dtype=np.uint8))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (Relu, [0.0, 0.0, 2.0, np.nan, np.inf, 0.0, 1000.0, 0.0]),
        (Relu6, [0.0, 0.0, 2.0, np.nan, 6.0, 0.0, 6.0, 0.0]),
        (Tanh, [math.tanh(-1), 0.0, math.tanh(2), np.nan, 1.0, -1.0, 1.0, -1.0]),
        (Sigmoid, [1 / (1 + math.e), 0.5, 1 / (1 + math.exp(-2)), np.nan, 1.0, 0.0, 1.0, 0.0]),
    ],
)
def test_activations_of_extreme_values(activation: type[Activation], expected: list[float], dtype: type) -> None:
    x: np.ndarray = np.array([[-1.0, 0.0, 2.0, np.nan, np.inf, -np.inf, 1000.0, -1000.0]], dtype)
    wanted: np.ndarray = np.array([expected], dtype)
    y = activation("a").reference(x, {})
    np.testing.assert_allclose(y, wanted, rtol=4 * float(np.finfo(dtype).eps), atol=0, strict=True)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1e4, 1e4, -1e4, 0], [0.5, 0.5, 0, 0]),  # exp(1e4) is infinite
        ([-1e4, -1e4, -1e4, -1e4], [0.25] * 4),  # exp(-1e4) is 0, and so would be the sum that divides
        ([-np.inf, 0, -np.inf, -np.inf], [0, 1, 0, 0]),
        ([np.inf, 0, 1, 2], [np.nan] * 4),
        ([0, np.nan, 1, 2], [np.nan] * 4),
        ([-np.inf] * 4, [np.nan] * 4),
    ],
)
def test_softmax_of_extreme_scores(scores: list[float], expected: list[float], dtype: type) -> None:
    x: np.ndarray = np.array([scores, [0, 0, 0, 0]], dtype)  # the other row does not change
    wanted: np.ndarray = np.array([expected, [0.25] * 4], dtype)
    np.testing.assert_array_equal(Softmax("softmax").reference(x, {}), wanted, strict=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("at", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("pool", POOLS)
def test_pooling_keeps_nan_from_any_place_in_the_window(pool: type[Pool], at: tuple[int, int], dtype: type) -> None:
    x: np.ndarray = np.arange(16, dtype=dtype).reshape(1, 1, 4, 4)
    x[0, 0, at[0], at[1]] = np.nan
    y = pool("pool", 2).reference(x, {})
    np.testing.assert_array_equal(np.isnan(y)[0, 0], [[True, False], [False, False]])


@pytest.mark.parametrize("pool", POOLS)
def test_pixels_beyond_the_border_do_not_count(pool: type[Pool]) -> None:
    """Pixels beyond the border enter neither a maximum of negative numbers nor a mean; NaN and infinities remain."""
    x: np.ndarray = np.array([[-5.0, -7.0, -3.0], [-9.0, np.nan, -1.0], [-np.inf, -2.0, -8.0]]).reshape(1, 1, 3, 3)
    y = pool("pool", 2, ceil=True).reference(x, {})
    expected = [[np.nan, -1.0], [-2.0, -8.0]] if pool is MaxPool else [[np.nan, -2.0], [-np.inf, -8.0]]
    np.testing.assert_array_equal(y[0, 0], expected)


def test_channel_first_rows_permute_features_and_weights_alike() -> None:
    shape = (3, 5, 4)
    x = _random_inputs(shape, np.float64)
    flat = Flatten("flatten").reference(x, {})
    rows = channels_first_permutation(shape)
    np.testing.assert_array_equal(x.reshape(3, -1), flat[:, rows])
    weights = np.random.default_rng(1).normal(size=(60, 2))
    np.testing.assert_allclose(x.reshape(3, -1) @ weights[rows], flat @ weights, rtol=1e-12)
