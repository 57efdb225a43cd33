"""Each layer's NumPy reference against ONNX Runtime and against its definition written as plain loops."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from app.errors import UserError
from app.layers import Argmax, AvgPool, Conv2d, Flatten, Layer, Linear, MaxPool, Relu, Shape
from app.layers.flatten import channel_first_rows
from app.layers.pool import Pool
from app.networks import Network
from tests.oracle import onnx_outputs

FLOATS = [np.float32, np.float64]
POOLS = [AvgPool, MaxPool]

# Layer and input shape: filters 1..7, strides 1..3, height and width that differ and leave rows and columns over.
CONVS = [
    (Conv2d("conv", maps=1 + (kernel + stride) % 4, kernel=kernel, stride=stride), (channels, kernel + 5, kernel + 2))
    for kernel in range(1, 8)
    for stride in range(1, 4)
    for channels in (1, 3)
]
POOLINGS = [
    (pool("pool", window, stride), shape)
    for pool in POOLS
    for window in (2, 3, 4)
    for stride in (None, 1, 2, 5)
    for shape in ((1, 9, 7), (3, 4, 11))
]
OTHERS: list[tuple[Layer, Shape]] = [
    (Relu("relu"), (3, 5, 4)),
    (Relu("relu"), (17,)),
    (Flatten("flatten"), (3, 5, 4)),
    (Flatten("flatten"), (1, 2, 3)),
    (Linear("fc", outputs=7), (19,)),
    (Linear("fc", outputs=1), (1,)),
]


def _name(case: object) -> str:
    if isinstance(case, Conv2d):
        return f"conv-k{case.kernel}-s{case.stride}"
    if isinstance(case, Pool):
        return f"{case.kind}-{case.window}-by-{case.step}"
    if isinstance(case, bool):
        return "bias" if case else "no-bias"
    return case.kind if isinstance(case, Layer) else "x".join(map(str, case)) if isinstance(case, tuple) else str(case)


def _arrays(layer: Layer, shape: Shape, bias: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(prod(shape))
    wanted = layer.parameter_shapes(shape)
    names = [name for name in wanted if bias or not name.endswith("_bias")]
    return {
        name: rng.normal(0, 1 / np.sqrt(prod(wanted[layer.name][:-1])), wanted[name]).astype(np.float32)
        for name in names
    }


def _inputs(shape: Shape, dtype: type, images: int = 3) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=(images, *shape)).astype(dtype)


@pytest.mark.parametrize("bias", [False, True], ids=_name)
@pytest.mark.parametrize(("layer", "shape"), CONVS, ids=_name)
def test_conv2d_is_its_definition(layer: Conv2d, shape: Shape, bias: bool) -> None:
    arrays = _arrays(layer, shape, bias)
    x = _inputs(shape, np.float64, images=2)
    filters, step = arrays["conv"].astype(np.float64), layer.stride
    expected = np.zeros((2, *layer.output_shape(shape)))
    for b, m, h, w in np.ndindex(expected.shape):
        total = float(arrays["conv_bias"][m]) if bias else 0.0
        for c, p, q in np.ndindex(shape[0], layer.kernel, layer.kernel):
            total += x[b, c, h * step + p, w * step + q] * filters[p, q, c, m]
        expected[b, m, h, w] = total
    np.testing.assert_allclose(layer.reference(x, arrays), expected, rtol=0, atol=1e-12, strict=True)


@pytest.mark.parametrize(("layer", "shape"), POOLINGS, ids=_name)
def test_pooling_is_its_definition(layer: Pool, shape: Shape) -> None:
    x = _inputs(shape, np.float64)
    expected = np.zeros((3, *layer.output_shape(shape)))
    for b, c, h, w in np.ndindex(expected.shape):
        rows = range(h * layer.step, h * layer.step + layer.window)
        columns = range(w * layer.step, w * layer.step + layer.window)
        window = [x[b, c, row, column] for row in rows for column in columns]
        expected[b, c, h, w] = max(window) if isinstance(layer, MaxPool) else sum(window) / len(window)
    np.testing.assert_allclose(layer.reference(x, {}), expected, rtol=0, atol=1e-14, strict=True)


@pytest.mark.parametrize(
    ("layer", "shape", "bias"),
    [
        (layer, shape, bias)
        for layer, shape in [*CONVS, *POOLINGS, *OTHERS]
        for bias in ((False, True) if layer.parameter_shapes(shape) else (False,))
    ],
    ids=_name,
)
def test_float32_agrees_with_onnx_runtime(layer: Layer, shape: Shape, bias: bool) -> None:
    arrays, x = _arrays(layer, shape, bias), _inputs(shape, np.float32)
    expected = onnx_outputs(Network("alone", "one layer", shape, (layer,)), arrays, x)[layer.name]
    np.testing.assert_allclose(layer.reference(x.copy(), arrays), expected, rtol=0, atol=1e-5, strict=True)


@pytest.mark.parametrize("bias", [False, True], ids=_name)
def test_linear_in_float64_is_its_definition(bias: bool) -> None:
    layer, shape = Linear("fc", outputs=5), (11,)
    arrays, x = _arrays(layer, shape, bias), _inputs(shape, np.float64)
    expected = np.array(
        [[sum(row[k] * float(arrays["fc"][k, n]) for k in range(11)) for n in range(5)] for row in x]
    ) + (arrays["fc_bias"] if bias else 0)
    np.testing.assert_allclose(layer.reference(x, arrays), expected, rtol=0, atol=1e-14, strict=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("layer", "shape"), [CONVS[0], CONVS[-1], POOLINGS[0], POOLINGS[-1], *OTHERS], ids=_name
)  # fmt: skip
def test_the_float_type_is_kept(layer: Layer, shape: Shape, dtype: type) -> None:
    y = layer.reference(_inputs(shape, dtype), _arrays(layer, shape, bool(layer.parameter_shapes(shape))))
    assert (y.dtype, y.shape) == (dtype, (3, *layer.output_shape(shape)))


@pytest.mark.parametrize("layer", [Conv2d("c", 2, 3), AvgPool("p", 2), MaxPool("p", 2), Flatten("f")], ids=_name)
def test_strides_of_the_input_do_not_matter(layer: Layer) -> None:
    arrays = {"c": np.ones((3, 3, 4, 2), np.float32)}
    x = _inputs((4, 6, 5), np.float64)
    channels_last = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    assert not channels_last.flags.c_contiguous
    np.testing.assert_allclose(layer.reference(channels_last, arrays), layer.reference(x, arrays), rtol=1e-14)


@pytest.mark.parametrize("dtype", FLOATS)
def test_argmax_takes_the_first_among_equals(dtype: type) -> None:
    scores: np.ndarray = np.array([[1, 3, 3, 0], [5, 5, 5, 5], [-2, -3, -1, -np.inf], [-np.inf] * 4], dtype)
    labels = Argmax("argmax").reference(scores, {})
    np.testing.assert_array_equal(labels, np.array([1, 0, 2, 0], np.uint8), strict=True)


def test_argmax_counts_to_255() -> None:
    np.testing.assert_array_equal(Argmax("argmax").reference(np.eye(256), {}), np.arange(256, dtype=np.uint8))


@pytest.mark.parametrize("dtype", FLOATS)
def test_relu(dtype: type) -> None:
    x: np.ndarray = np.array([[-1.0, 0.0, 2.0, np.nan, np.inf, -np.inf]], dtype)
    expected: np.ndarray = np.array([[0.0, 0.0, 2.0, np.nan, np.inf, 0.0]], dtype)
    np.testing.assert_array_equal(Relu("relu").reference(x, {}), expected, strict=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("at", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("pool", POOLS)
def test_pooling_keeps_nan_from_any_place_in_the_window(pool: type[Pool], at: tuple[int, int], dtype: type) -> None:
    x: np.ndarray = np.arange(16, dtype=dtype).reshape(1, 1, 4, 4)
    x[0, 0, at[0], at[1]] = np.nan
    y = pool("pool", 2).reference(x, {})
    np.testing.assert_array_equal(np.isnan(y)[0, 0], [[True, False], [False, False]])


def test_argmax_prefers_nan_as_numpy_does() -> None:
    scores = np.array([[np.inf, np.nan, 2, np.nan], [1, 2, 3, np.nan]])
    np.testing.assert_array_equal(Argmax("argmax").reference(scores, {}), [1, 3])


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (Conv2d("c", 32, 5), (1, 28, 28), (32, 24, 24)),
        (Conv2d("c", 4, 7), (1, 86, 86), (4, 80, 80)),
        (Conv2d("c", 2, 3, stride=2), (5, 8, 9), (2, 3, 4)),
        (Conv2d("c", 2, 3, stride=3), (5, 3, 10), (2, 1, 3)),
        (AvgPool("p", 2), (6, 5, 4), (6, 2, 2)),
        (MaxPool("p", 4), (16, 34, 35), (16, 8, 8)),
        (MaxPool("p", 3, stride=2), (1, 8, 7), (1, 3, 3)),
        (Relu("r"), (2, 3, 4), (2, 3, 4)),
        (Flatten("f"), (2, 3, 4), (24,)),
        (Linear("l", 10), (24,), (10,)),
        (Argmax("a"), (256,), ()),
    ],
)
def test_shape_rules(layer: Layer, shape: Shape, expected: Shape) -> None:
    assert layer.output_shape(shape) == expected


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Conv2d("odd_one", 8, 5), (3, 4, 9)),
        (Conv2d("odd_one", 8, 5), (3, 9, 4)),
        (Conv2d("odd_one", 8, 5), (784,)),
        (AvgPool("odd_one", 3), (3, 9, 2)),
        (MaxPool("odd_one", 3), (3, 2, 9)),
        (MaxPool("odd_one", 3), (9, 9)),
        (Flatten("odd_one"), (24,)),
        (Linear("odd_one", 10), (2, 3, 4)),
        (Argmax("odd_one"), (257,)),
        (Argmax("odd_one"), (1, 2, 3)),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_by_name(layer: Layer, shape: Shape) -> None:
    with pytest.raises(UserError, match="layer odd_one ") as caught:
        layer.output_shape(shape)
    assert str(shape) in str(caught.value) and "\n" not in str(caught.value)


def test_channel_first_rows_permute_features_and_weights_alike() -> None:
    shape = (3, 5, 4)
    x = _inputs(shape, np.float64)
    flat = Flatten("flatten").reference(x, {})
    rows = channel_first_rows(shape)
    np.testing.assert_array_equal(x.reshape(3, -1), flat[:, rows])
    weights = np.random.default_rng(1).normal(size=(60, 2))
    np.testing.assert_allclose(x.reshape(3, -1) @ weights[rows], flat @ weights, rtol=1e-12)


RELU, POOL, ARGMAX = Relu("r"), AvgPool("p", 2), Argmax("a")
CONV, LINEAR = Conv2d("c", maps=4, kernel=3), Linear("l", outputs=6)
SHAPE: Shape = (3, 18, 13)


@pytest.mark.parametrize("epilogue", [[], [RELU], [POOL], [RELU, POOL], [RELU, MaxPool("p", 3)], [MaxPool("p", 2, 2)]])
def test_what_a_convolution_fuses_keeps_its_shapes(epilogue: list[Layer]) -> None:
    layer, shape = replace(CONV, stride=2), SHAPE
    problem = layer.problem(shape, epilogue, bias=False, input_dtype="uint8", dtype="float32")
    assert problem is not None
    assert (problem.relu, problem.pool > 1) == (RELU in epilogue, any(isinstance(e, Pool) for e in epilogue))
    assert problem.pool_is_max == any(isinstance(e, MaxPool) for e in epilogue)
    x, _, _, y = problem.arguments()
    assert (x.dtype, x.per_image, y.dtype) == ("uint8", prod(shape), "float32")
    for each in [layer, *epilogue]:
        shape = each.output_shape(shape)
    assert y.per_image == prod(shape)


@pytest.mark.parametrize(
    ("layer", "shape", "epilogue", "input_dtype"),
    [
        (CONV, (1, 9, 9), [POOL, RELU], "float32"),
        (CONV, (1, 9, 9), [RELU, RELU], "float32"),
        (CONV, (1, 9, 9), [RELU, AvgPool("p", 3, stride=2)], "float32"),
        (CONV, (1, 9, 9), [RELU, POOL, CONV], "float32"),
        (LINEAR, (8,), [RELU, ARGMAX], "float32"),
        (LINEAR, (8,), [LINEAR], "float32"),
        (RELU, (8,), [ARGMAX], "float32"),
        (RELU, (8,), [], "uint8"),
        (POOL, (1, 9, 9), [RELU], "float32"),
        (POOL, (1, 9, 9), [], "uint8"),
        (ARGMAX, (8,), [RELU], "float32"),
        (ARGMAX, (8,), [], "uint8"),
        (Flatten("f"), (1, 9, 9), [], "float32"),
    ],
)
def test_what_cannot_be_fused(layer: Layer, shape: Shape, epilogue: list[Layer], input_dtype: str) -> None:
    assert layer.problem(shape, epilogue, bias=False, input_dtype=input_dtype, dtype="float32") is None
