"""Test each layer's output shapes, the input shapes that it refuses, and the kernel problems that it returns."""

from dataclasses import replace
from itertools import product
from math import prod

import pytest

from app.kernels.problems import ConvProblem, LinearProblem, operation
from app.layers import (
    ACTIVATIONS,
    Argmax,
    AvgPool,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    MaxPool,
    Relu,
    Shape,
    Sigmoid,
    Softmax,
    Tanh,
)
from tests.support.shell import user_error

RELU, POOL, ARGMAX, SOFTMAX = Relu("r"), AvgPool("p", 2), Argmax("a"), Softmax("s")
CONV, LINEAR = Conv2d("c", maps=4, kernel=3), Linear("l", outputs=6)
SHAPE: Shape = (3, 18, 13)
# Types of a layer's input in memory, of its multiplication, and of its output in memory.
TYPES = [
    ("uint8", "float32", "float32"),
    ("uint8", "float16", "float16"),
    ("float32", "tfloat32", "float32"),
    ("float16", "float16", "float32"),
    ("float64", "float64", "float64"),
]


def dtype_arguments(types: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("input_dtype", "dtype", "output_dtype"), types, strict=True))


def _test_id(case: object) -> str:
    if isinstance(case, list):
        return "+".join(layer.kind for layer in case) or "none"
    return case.kind if isinstance(case, Layer) else str(case)


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (Conv2d("c", 32, 5), (1, 28, 28), (32, 24, 24)),
        (Conv2d("c", 4, 7), (1, 86, 86), (4, 80, 80)),
        (Conv2d("c", 2, 3, stride=2), (5, 8, 9), (2, 3, 4)),
        (Conv2d("c", 2, 3, stride=3), (5, 3, 10), (2, 1, 3)),
        (Conv2d("c", 6, 5, padding=2), (1, 28, 28), (6, 28, 28)),
        (Conv2d("c", 2, 7, stride=2, padding=6), (3, 1, 4), (2, 4, 5)),
        (AvgPool("p", 2), (6, 5, 4), (6, 2, 2)),
        (MaxPool("p", 4), (16, 34, 35), (16, 8, 8)),
        (MaxPool("p", 3, stride=2), (1, 8, 7), (1, 3, 3)),
        (MaxPool("p", 4, ceil=True), (16, 34, 35), (16, 9, 9)),
        (AvgPool("p", 3, stride=2, ceil=True), (1, 8, 7), (1, 4, 3)),
        (AvgPool("p", 2, stride=3, ceil=True), (1, 6, 7), (1, 2, 3)),  # no window begins behind the last row
        (Relu("r"), (2, 3, 4), (2, 3, 4)),
        (Tanh("t"), (5,), (5,)),
        (Sigmoid("s"), (2, 3, 4), (2, 3, 4)),
        (Softmax("s"), (300,), (300,)),
        (Flatten("f"), (2, 3, 4), (24,)),
        (Linear("l", 10), (24,), (10,)),
        (Argmax("a"), (256,), ()),
    ],
)
def test_output_shapes(layer: Layer, shape: Shape, expected: Shape) -> None:
    assert layer.output_shape(shape) == expected


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Conv2d("odd_one", 8, 5), (3, 4, 9)),
        (Conv2d("odd_one", 8, 5), (3, 9, 4)),
        (Conv2d("odd_one", 8, 5), (784,)),
        (Conv2d("odd_one", 8, 5, padding=1), (3, 9, 2)),
        (Conv2d("odd_one", 8, 5, padding=5), (3, 9, 9)),
        (Conv2d("odd_one", 8, 5, padding=-1), (3, 9, 9)),
        (Conv2d("odd_one", 8, 5, stride=0), (3, 9, 9)),
        (Conv2d("odd_one", 8, 5, stride=-1), (3, 9, 9)),
        (Conv2d("odd_one", 8, 0), (3, 9, 9)),
        (AvgPool("odd_one", 3), (3, 9, 2)),
        (MaxPool("odd_one", 3), (3, 2, 9)),
        (MaxPool("odd_one", 3, ceil=True), (3, 2, 9)),
        (MaxPool("odd_one", 3), (9, 9)),
        (Flatten("odd_one"), (24,)),
        (Linear("odd_one", 10), (2, 3, 4)),
        (Softmax("odd_one"), (10, 1, 1)),
        (Argmax("odd_one"), (257,)),
        (Argmax("odd_one"), (1, 2, 3)),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_the_layer_s_name(layer: Layer, shape: Shape) -> None:
    error = user_error(lambda: layer.output_shape(shape))
    assert "layer odd_one " in error and str(shape) in error


@pytest.mark.parametrize(
    ("epilogue", "activation", "pooling"),
    [
        ([], "", (1, False, False)),
        ([POOL], "", (2, False, False)),
        ([AvgPool("p", 2, ceil=True)], "", (2, False, False)),  # all windows lie inside
        ([AvgPool("p", 3, ceil=True)], "", (3, False, True)),
        ([MaxPool("p", 2, 2)], "", (2, True, False)),
        *(([kind("a")], kind.kind, (1, False, False)) for kind in ACTIVATIONS.values()),
        *(([kind("a"), POOL], kind.kind, (2, False, False)) for kind in ACTIVATIONS.values()),
        *(([kind("a"), MaxPool("p", 3)], kind.kind, (3, True, False)) for kind in ACTIVATIONS.values()),
    ],
    ids=_test_id,
)
def test_what_a_convolution_fuses_keeps_its_shapes(
    epilogue: list[Layer], activation: str, pooling: tuple[int, bool, bool]
) -> None:
    pool, is_max, ceil = pooling
    for types, padding in product(TYPES, (0, 2)):
        layer, shape = replace(CONV, stride=2, padding=padding), SHAPE
        problem = layer.kernel_problem(shape, epilogue, bias=True, **dtype_arguments(types))
        given = (True, activation, pool, is_max, *types, padding, ceil)
        assert problem == ConvProblem(3, 18, 13, 4, 3, 2, *given)
        x, _, _, y = problem.arguments()
        assert (x.dtype, x.per_image, y.dtype) == (types[0], prod(shape), types[2])
        for each in [layer, *epilogue]:
            shape = each.output_shape(shape)
        assert y.per_image == prod(shape)


@pytest.mark.parametrize(
    ("epilogue", "activation", "argmax"),
    [([], "", False), ([ARGMAX], "", True), *(([kind("a")], kind.kind, False) for kind in ACTIVATIONS.values())],
    ids=_test_id,
)
def test_what_a_linear_layer_fuses(epilogue: list[Layer], activation: str, argmax: bool) -> None:
    for types in TYPES:
        problem = LINEAR.kernel_problem((8,), epilogue, bias=True, **dtype_arguments(types))
        assert problem == LinearProblem(8, 6, True, activation, argmax, *types)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(POOL, SHAPE), *((kind("a"), SHAPE) for kind in ACTIVATIONS.values()), (SOFTMAX, (8,)), (ARGMAX, (8,))],
    ids=_test_id,
)
def test_layers_without_epilogue_keep_their_input_s_type(layer: Layer, shape: Shape) -> None:
    for stored in ("float16", "float32", "float64"):
        problem = layer.kernel_problem(shape, [], bias=False, **dtype_arguments((stored, "tfloat32", stored)))
        assert problem is not None and operation(problem) == layer.operation
        assert (problem.dtype, problem.flops) == (stored, layer.flops(shape))
        x, y = problem.arguments()
        assert (x.dtype, x.per_image) == (stored, prod(shape))
        assert (y.dtype, y.per_image) == ("uint8" if layer is ARGMAX else stored, prod(layer.output_shape(shape)))


def test_ceil_without_windows_over_the_border_is_the_same_problem() -> None:
    """Equal problems share tuning keys and machine code."""
    types = ("float32", "float32", "float32")
    plain, over = (
        [layer.kernel_problem(shape, [], bias=False, **dtype_arguments(types)) for shape in ((3, 18, 12), (3, 18, 13))]
        for layer in (MaxPool("p", 3), MaxPool("p", 3, ceil=True))
    )
    assert plain[0] == over[0] and plain[1] != over[1]


def test_labels_are_bytes_whatever_the_output_type() -> None:
    problem = ARGMAX.kernel_problem((8,), [], bias=False, **dtype_arguments(("float32", "float16", "float16")))
    assert problem is not None and problem.dtype == "float32"


@pytest.mark.parametrize(
    ("layer", "shape", "epilogue", "input_dtype"),
    [
        (CONV, (1, 9, 9), [POOL, RELU], "float32"),
        (CONV, (1, 9, 9), [RELU, Tanh("t")], "float32"),
        (CONV, (1, 9, 9), [RELU, AvgPool("p", 3, stride=2)], "float32"),
        (CONV, (1, 9, 9), [RELU, POOL, CONV], "float32"),
        (LINEAR, (8,), [RELU, ARGMAX], "float32"),
        (LINEAR, (8,), [LINEAR], "float32"),
        (LINEAR, (8,), [SOFTMAX], "float32"),
        (RELU, (8,), [RELU], "float32"),
        (RELU, (8,), [], "uint8"),
        (RELU, (8,), [], "float16"),
        (POOL, (1, 9, 9), [RELU], "float32"),
        (POOL, (1, 9, 9), [], "uint8"),
        (POOL, (1, 9, 9), [], "float64"),
        (SOFTMAX, (8,), [ARGMAX], "float32"),
        (SOFTMAX, (8,), [], "uint8"),
        (SOFTMAX, (8,), [], "float16"),
        (ARGMAX, (8,), [RELU], "float32"),
        (ARGMAX, (8,), [], "uint8"),
        (Flatten("f"), (1, 9, 9), [], "float32"),
    ],
)
def test_what_layers_cannot_fuse(layer: Layer, shape: Shape, epilogue: list[Layer], input_dtype: str) -> None:
    types = dtype_arguments((input_dtype, "float32", "float32"))
    assert layer.kernel_problem(shape, epilogue, bias=False, **types) is None
