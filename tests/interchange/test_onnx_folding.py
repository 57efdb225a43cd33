"""Test what import folds and leaves out of ONNX models: ONNX Runtime computes the same scores on the model itself."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from tests.support.onnx_steps import (
    BYTES,
    DIV,
    FLAT,
    MEAN,
    POOL,
    RELU,
    SIZES,
    SUB,
    Step,
    conv,
    floats,
    gemm,
    imported,
    model_of,
    norm,
    whole,
)
from tests.support.shell import user_error

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

LAST: Step = ("Transpose", [], {"perm": [0, 2, 3, 1]})
FIRST: Step = ("Transpose", [], {"perm": [0, 3, 1, 2]})
KERAS: dict[str, tuple[tuple[int, ...], list[Step]]] = {  # models whose activations are (N,H,W,C)
    "transposed at the ends": ((8, 9, 3), [FIRST, conv(), RELU, POOL, LAST, FLAT, gemm(36)]),
    "around each": (
        (8, 8, 3),
        [FIRST, conv(), LAST, RELU, FIRST, POOL, LAST, ("Reshape", [whole(-1, 36)], {}), gemm(36)],
    ),
    "grey": ((8, 8, 1), [("Reshape", [whole(-1, 1, 8, 8)], {}), conv(1), LAST, FLAT, gemm(144)]),
    "normalised": (
        (8, 8, 3),
        [("Sub", [floats(3)], {}), DIV, FIRST, conv(), LAST, ("Add", [floats(1, 1, 1, 4)], {}), FLAT, gemm(144)],
    ),
    "mean": ((8, 8, 3), [FIRST, conv(), LAST, ("ReduceMean", [whole(1, 2)], {"keepdims": 0}), gemm(4)]),
    "features normalised": ((8, 8, 3), [FIRST, conv(), LAST, RELU, FLAT, norm(144), gemm(144)]),
    "a product alone": ((8, 8, 3), [FLAT, gemm(192)]),
}


@pytest.mark.parametrize("form", KERAS)
def test_channels_may_come_last(form: str) -> None:
    shape, steps = KERAS[form]
    source = imported(model_of(steps, shape=shape))
    assert source.network.input_shape == (shape[2], *shape[:2])


CONSTANTS = [  # Constant nodes whose value is no tensor
    ("Constant", [], {"to_name": "factor", "value_float": 0.25}),
    ("Constant", [], {"to_name": "shape", "value_ints": [-1, 144]}),
    ("Div", ["@", "factor"], {}),
    ("Reshape", ["@", "shape"], {}),
]
ZEROS: Step = ("Pad", [whole(*[0, 0, 1, 1] * 2)], {})
WINDOW = {"kernel_shape": [2, 2], "strides": [2, 2]}
COUNTING: Step = ("AveragePool", [], {**WINDOW, "pads": [1] * 4, "count_include_pad": 1})
FOLDED: dict[str, tuple[list[Step], str, str]] = {  # name → nodes, kinds of the resulting layers, a note
    "behind a convolution": ([conv(), norm(4), RELU, FLAT, gemm(144)], "conv2d relu flatten linear", "layer before"),
    "behind a mean": ([conv(), MEAN, norm(4), FLAT, gemm(36)], "conv2d avgpool flatten linear", "the layer before"),
    "behind a maximum": (
        [conv(), POOL, norm(4, positive=True), RELU, FLAT, gemm(36)],
        "conv2d maxpool relu flatten linear",
        "the layer before",
    ),
    "behind a maximum, turned": (
        [conv(), POOL, norm(4), RELU, FLAT, gemm(36)],
        "conv2d maxpool conv2d relu flatten linear",
        "a convolution of 1 x 1, because a relu follows",
    ),
    "behind relu": ([conv(), RELU, norm(4), FLAT, gemm(144)], "conv2d relu flatten linear", "the layer behind"),
    "before padding": (
        [conv(), RELU, norm(4), conv(4, 2, pads=[1] * 4), FLAT, gemm(72)],
        "conv2d relu conv2d conv2d flatten linear",
        "because padding follows",
    ),
    "behind a product": ([FLAT, gemm(192, 9), norm(9), RELU, gemm(9)], "flatten linear relu linear", "layer before"),
    "of features": ([FLAT, gemm(192, 9), RELU, norm(9), gemm(9)], "flatten linear relu linear", "layer behind"),
    "twice": ([conv(), RELU, norm(4), norm(4), FLAT, gemm(144)], "conv2d relu flatten linear", "the layer behind"),
    "of images": ([norm(3), conv(), FLAT, gemm(144)], "conv2d flatten linear", "the layer behind"),
    "normalised": (
        [("Sub", [floats(1, 3, 1, 1)], {}), DIV, conv(pads=[1] * 4), FLAT, gemm(256)],
        "conv2d conv2d flatten linear",
        "(Div): a convolution of 1 x 1, because padding follows",
    ),
    "no shift": ([("Mul", [floats(3, 1, 1)], {}), conv(pads=[1] * 4), FLAT, gemm(256)], "conv2d flatten linear", ""),
    "turned": ([("Mul", [np.float32(-2)], {}), FLAT, gemm(192)], "flatten linear", "(Mul): folded into the layer be"),
    "scaled behind": ([conv(), ("Mul", [floats(4, 1, 1)], {}), FLAT, gemm(144)], "conv2d flatten linear", "before it"),
    "a bias alone": (
        [FLAT, ("MatMul", [floats(192, 5)], {}), ("Add", [floats(5)], {}), ("Sub", [floats(1)], {})],
        "flatten linear",
        "(Sub): folded into the layer before it",
    ),
    "left out": (
        [FLAT, ("Identity",), ("Cast", [], {"to": 1}), gemm(192), ("Dropout",)],
        "flatten linear",
        "(Dropout): left out, it changes no number",
    ),
    "log-softmax": ([FLAT, gemm(192), ("LogSoftmax", [], {"axis": -1})], "flatten linear", "the labels are the same"),
    "flatten from behind": ([conv(), ("Flatten", [], {"axis": -3}), gemm(144)], "conv2d flatten linear", ""),
    "reshape": ([conv(), ("Reshape", [whole(0, -1)], {}), gemm(144)], "conv2d flatten linear", ""),
    "allowzero": ([conv(), ("Reshape", [whole(-1, 144)], {"allowzero": 1}), gemm(144)], "conv2d flatten linear", ""),
    "no other shape": ([("Reshape", [whole(-1, 3, 8, 8)], {}), conv(), FLAT, gemm(144)], "conv2d flatten linear", ""),
    "constants": ([conv(), *CONSTANTS, gemm(144)], "conv2d flatten linear", "(Div): folded into the layer before it"),
    "computed shape": ([conv(), *SIZES, gemm(144)], "conv2d flatten linear", ""),
    "global average": ([conv(), ("GlobalAveragePool",), FLAT, gemm(4)], "conv2d avgpool flatten linear", "6 x 6"),
    "global maximum": ([conv(), ("GlobalMaxPool",), FLAT, gemm(4)], "conv2d maxpool flatten linear", "6 x 6"),
    "mean": ([conv(), ("ReduceMean", [whole(-1, -2)], {"keepdims": 0}), gemm(4)], "conv2d avgpool flatten linear", "6"),
    "mean, by tf2onnx": (
        [conv(), ("ReduceMean", [whole(2, 3)], {"keepdims": 0, "noop_with_empty_axes": 1}), gemm(4)],
        "conv2d avgpool flatten linear",
        "",
    ),
    "behind a mean of zeros": (
        [conv(), COUNTING, norm(4), RELU, FLAT, gemm(64)],
        "conv2d avgpool conv2d relu flatten linear",
        "a convolution of 1 x 1, because a relu follows",
    ),
    "before a mean of zeros": (
        [conv(), RELU, norm(4), COUNTING, FLAT, gemm(64)],
        "conv2d relu conv2d avgpool flatten linear",
        "a convolution of 1 x 1, because a avgpool follows",
    ),
    "before a mean of pixels": (
        [conv(), RELU, norm(4), ("AveragePool", [], {**WINDOW, "pads": [1] * 4}), norm(4), FLAT, gemm(64)],
        "conv2d relu avgpool flatten linear",
        "folded into the layer behind it",
    ),
    "a pad before a mean": ([conv(), ZEROS, ("AveragePool", [], WINDOW), FLAT, gemm(64)], "conv2d avgpool flatten", ""),
    "a pad behind relu": ([conv(), RELU, ZEROS, ("MaxPool", [], WINDOW), FLAT, gemm(64)], "conv2d relu maxpool", ""),
    "squeezed": (
        [conv(), ("ReduceMean", [whole(2, 3)], {}), ("Squeeze", [whole(3)], {}), ("Squeeze", [whole(-1)], {}), gemm(4)],
        "conv2d avgpool flatten linear",
        "",
    ),
    "relu6": ([conv(), ("Clip", [np.float32(0), np.float32(6)], {}), FLAT, gemm(144)], "conv2d relu6 flatten", ""),
    "leaky relu": ([conv(), ("LeakyRelu", [], {"alpha": 0.2}), POOL, FLAT, gemm(36)], "conv2d leakyrelu maxpool", ""),
    "its default": ([conv(), ("LeakyRelu",), norm(4), FLAT, gemm(144)], "conv2d leakyrelu flatten linear", "behind it"),
    "one slope": ([conv(), ("PRelu", [np.full(1, 0.25, np.float32)], {}), FLAT, gemm(144)], "conv2d leaky", ""),
    "equal slopes": ([conv(), ("PRelu", [np.full((4, 1, 1), 0.1, np.float32)], {}), FLAT, gemm(144)], "conv2d lea", ""),
    "maximum as relu": ([conv(), ("Max", [np.float32(0)], {}), FLAT, gemm(144)], "conv2d relu flatten linear", ""),
    "clip as relu": ([conv(), ("Clip", [np.float32(0)], {}), FLAT, gemm(144)], "conv2d relu flatten linear", ""),
    "padded more at the end": (
        [conv(kernel=4, pads=[1, 1, 2, 2]), FLAT, gemm(256)],
        "conv2d flatten linear",
        "its filters get zeros, to be padded by 2 on all sides",
    ),
    "padded more at the start": ([conv(pads=[2, 2, 0, 0], strides=[2, 2]), FLAT, gemm(64)], "conv2d flatten", "zeros"),
    "maximum": ([conv(), ("ReduceMax", [whole(2, 3)], {"keepdims": 0}), gemm(4)], "conv2d maxpool flatten linear", ""),
    "negative": ([("Sub", [np.float32(1), "@"], {}), conv(pads=[1] * 4), FLAT, gemm(256)], "conv2d conv2d flatten", ""),
    "a pad of its own": (
        [("Pad", [whole(0, 0, 1, 1, 0, 0, 2, 2)], {}), conv(), FLAT, gemm(324)],
        "conv2d flatten linear",
        "its filters get zeros, to be padded by 2",
    ),
    "same": ([conv(auto_pad="SAME_UPPER"), FLAT, gemm(256)], "conv2d flatten linear", ""),
    "valid": ([conv(auto_pad="VALID", strides=[2, 2]), FLAT, gemm(36)], "conv2d flatten linear", ""),
    "same pooling": (
        [conv(kernel=2), (*POOL[:2], POOL[2] | {"auto_pad": "SAME_UPPER"}), FLAT, gemm(64)],
        "conv2d maxpool flatten linear",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "steps", "image"),
    [
        ((8, 8), [("Unsqueeze", [whole(1)], {}), conv(1), FLAT, gemm(144)], (1, 8, 8)),
        ((8, 9), [FLAT, gemm(72)], (1, 8, 9)),
        ((64,), [gemm(64), RELU, gemm(5)], (1, 8, 8)),
    ],
)
def test_images_may_have_no_channels(shape: tuple[int, ...], steps: list[Step], image: tuple[int, ...]) -> None:
    source = imported(model_of(steps, shape=shape))
    assert source.network.input_shape == image and f"its images {shape} are taken as {image}" in source.notes


@pytest.mark.parametrize("form", FOLDED)
def test_folded_models_give_the_scores_of_onnx_runtime(form: str) -> None:
    steps, kinds, note = FOLDED[form]
    source = imported(model_of(steps))
    assert " ".join(layer.kind for layer in source.network.layers).startswith(kinds)
    assert any(note in one for one in source.notes), source.notes


def test_old_opsets_have_axes_as_attributes() -> None:
    model = model_of([conv(), ("ReduceMean", [], {"axes": [2, 3], "keepdims": 0}), gemm(4)], opset=13)
    assert [layer.kind for layer in imported(model).network.layers][1:3] == ["avgpool", "flatten"]


PIXELS: dict[str, tuple[list[Step], str, float]] = {  # name → nodes, type of the images, expected scale of bytes
    "floats, as they are": ([], "float32", 1 / 255),
    "floats from 0 to 1": ([SUB, DIV], "float32", 1 / 255),
    "floats from -1 to 1": ([("Mul", [np.float32(2)], {}), ("Sub", [np.float32(1)], {})], "float32", 2 / 255),
    "floats from 0 to 255": ([("Div", [np.float32(255)], {}), SUB, DIV], "float32", 1 / 255),
    "their own deviation": ([("Sub", [np.float32(73)], {}), ("Div", [np.float32(90)], {})], "float32", 1.0),
    "bytes": ([("Cast", [], {"to": 1}), ("Div", [np.float32(255)], {}), SUB, DIV], BYTES, 1 / 255),
    "bytes, as they are": ([("Cast", [], {"to": 1}), SUB], BYTES, 1.0),
}
UNIT = ("floats, as they are", "floats from 0 to 1", "floats from -1 to 1")


@pytest.mark.parametrize("kind", PIXELS)
def test_the_scale_of_the_images_implies_their_range(kind: str) -> None:
    first, pixels, scale = PIXELS[kind]
    source = imported(model_of([*first, conv(), FLAT, gemm(144)], pixels=pixels))
    assert source.scale == pytest.approx(scale)
    assert any("taken as pixels from 0 to 1" in note for note in source.notes) == (kind in UNIT)


BAD: dict[str, tuple[list[Step], str]] = {
    "a slope below 0": ([conv(), ("LeakyRelu", [], {"alpha": -0.1}), FLAT, gemm(144)], "has slopes -0.1"),
    "a slope for each map": ([conv(), ("PRelu", [floats(4, 1, 1)], {}), FLAT, gemm(144)], r"\(PRelu\) has slopes .*"),
    "a maximum of 1": ([conv(), ("Max", [np.float32(1)], {}), FLAT, gemm(144)], "has another limit than 0; train with"),
    "no slope": ([conv(), ("PRelu", [floats(0)], {}), FLAT, gemm(144)], "has slopes of no number; only one from 0"),
    "negative variance": ([conv(), ("BatchNormalization", [-np.abs(floats(4))] * 4, {}), FLAT], "variance .* negative"),
    "no variance": ([conv(), ("BatchNormalization", [np.full(4, np.nan, np.float32)] * 4, {}), FLAT], "or no number"),
    "other maps": ([conv(), norm(5), FLAT, gemm(144)], r"'n1' has a scale of \(5,\), needs \(4,\)"),
    "in training": ([conv(), (*norm(4)[:2], {"training_mode": 1}), FLAT], "has training_mode '1'"),
    "nan": ([("Sub", [np.float32("nan")], {}), conv(), FLAT, gemm(144)], "conv1_bias contains 4 NaN"),
    "by zero": ([("Div", [floats(3, 1, 1) * 0], {}), conv(), FLAT, gemm(144)], "conv1 contains 108 NaN"),
    "other limits": ([conv(), ("Clip", [np.float32(-1), np.float32(1)], {}), FLAT], "has other limits than 0 and 6"),
    "mean of channels": ([conv(), ("ReduceMean", [whole(1)], {}), FLAT], "is not over height and width"),
    "an image taken off": ([("Sub", [floats(3, 8, 8)], {}), conv(), FLAT, gemm(144)], r"of shape \(3, 8, 8\)"),
    "a residual": ([conv(3, 3, pads=[1] * 4), ("Add", ["images"], {}), FLAT], "does not read the layer before it"),
    "features at the end": ([FLAT, gemm(192), RELU, norm(5)], "cannot be folded, because no layer follows"),
    "features before tanh": ([FLAT, gemm(192), RELU, norm(5), ("Tanh",)], "cannot be folded, because a tanh follows"),
    "behind a log-softmax": ([FLAT, gemm(192), ("LogSoftmax",), RELU], "stands behind a LogSoftmax"),
    "behind a softmax": ([FLAT, gemm(192), ("Softmax",), ("LogSoftmax",)], r"\(LogSoftmax\) stands behind a softmax"),
    "transposed": ([("Transpose", [], {"perm": [0, 1, 3, 2]}), FLAT, gemm(192)], "does not exchange"),
    "channels last": ([LAST, conv(8), FLAT, gemm(144)], r"reads maps \(N,H,W,C\) as \(N,C,H,W\)"),
    "two flattened axes": ([conv(), ("Reshape", [whole(0, 4, 36)], {}), FLAT, gemm(144)], "gives another shape"),
    "of an activation": ([("Div", [np.float32(1), "@"], {}), conv(), FLAT, gemm(144)], "divides by an activation"),
    "itself as limit": ([conv(), ("Clip", ["@", "@"], {}), FLAT, gemm(144)], "has other limits than 0 and 6"),
    "a pad before pooling": ([conv(), ("Pad", [whole(*[0, 0, 1, 1] * 2)], {}), POOL, FLAT, gemm(64)], "behind a Pad"),
    "a pad at the end": ([FLAT, gemm(192), ("Pad", [whole(0, 0, 0, 0)], {})], "pads with other than zeros around"),
    "a pad before a maximum": ([conv(), ZEROS, ("MaxPool", [], WINDOW), FLAT, gemm(64)], "stands behind a Pad"),
    "a mirror": ([(*ZEROS[:2], {"mode": "reflect"}), conv(), FLAT, gemm(324)], "has mode 'reflect'; only 'constant'"),
    "pads of channels": ([("Pad", [whole(*[0, 1, 1, 1] * 2)], {}), conv(5), FLAT], "pads with other than zeros around"),
    "pads of ones": ([("Pad", [whole(*[0, 0, 1, 1] * 2), np.float32(1)], {}), conv(), FLAT], "other than zeros"),
    "zero features": ([conv(), ("Reshape", [whole(0, 0, 0)], {"allowzero": 1}), FLAT], "gives another shape"),
    "half of the maps": ([conv(), ("Squeeze", [whole(2)], {}), FLAT, gemm(144)], "does not leave"),
}


@pytest.mark.parametrize("fault", BAD)
def test_nodes_that_cannot_be_folded_give_one_line_errors(fault: str) -> None:
    steps, message = BAD[fault]
    assert re.search(message, user_error(lambda: imported(model_of(steps))))


def test_only_small_constants_are_added() -> None:
    def computed(*given: np.ndarray) -> Callable[[], Any]:
        add: Step = ("Add", ["a", "b"], {"to_name": "sum"})
        model = model_of([add, FLAT, ("Add", ["sum"], {}), gemm(192)])
        tensors = map(onnx.numpy_helper.from_array, given, "ab")
        model.graph.initializer.extend(tensors)
        return lambda: imported(model)

    computed(floats(1), floats(1, 1))()
    with pytest.raises(
        UserError, match=r"node 'n0' \(Add\) computes with constants only; export it with constant fold"
    ):
        computed(floats(65, 1), floats(1, 65))()
