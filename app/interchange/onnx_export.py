"""Export a network and its weights as an ONNX model that computes scores and labels from the bytes of images."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.base.errors import pip_install_command
from app.files.checks import BadValueError
from app.interchange.layout import to_channels_first
from app.interchange.named_arrays import Description, torch_key
from app.layers import Activation, Argmax, AvgPool, Conv2d, Flatten, Layer, LeakyRelu, Linear, Resize, Shape, Softmax
from app.layers.pool import Pool
from app.network.foreign import DESCRIPTION

OPSET, IR_VERSION = 17, 8  # versions of 2022, which every engine released since then supports
PRODUCER = "lenet5-inference"
IMAGES, SCORES, LABELS = "images", "scores", "labels"  # the model's input and outputs
OPERATORS = {"relu": "Relu", "relu6": "Clip", "tanh": "Tanh", "sigmoid": "Sigmoid"}
LIMITS = {"Clip": {"minimum": np.float32(0), "maximum": np.float32(6)}}  # operator → its constant inputs by name


def onnx_model(description: Description, arrays: Mapping[str, np.ndarray], dtype: str = "uint8") -> Any:
    """Return the ModelProto of the described network. arrays: float32, by name and in the layout of weights files.

    The input ``images`` is (N, C, H, W) of ``dtype``, bytes or floats. The outputs are ``scores``, (N, classes)
    float32, before the argmax, and ``labels``, (N,) int64. Images are enlarged in exact integer arithmetic. Equal
    arguments give equal models. Raises BadValueError without the package onnx, and for a layer that ONNX lacks.
    """
    onnx = require_onnx()
    helper, types = onnx.helper, onnx.TensorProto
    pixels = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    network = description.network
    graph = _GraphBuilder(helper, onnx.numpy_helper, description.input_scale, to_channels_first(network, arrays))
    for step in network.steps:
        graph.add_layer(step.layer, step.in_shape)
    last = {SCORES: (types.FLOAT, ["N", graph.classes]), LABELS: (types.INT64, ["N"])}
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            network.name,
            [helper.make_tensor_value_info(IMAGES, pixels, ["N", *network.input_shape])],
            [helper.make_tensor_value_info(name, *about) for name, about in last.items()],
            graph.constants,
        ),
        producer_name=PRODUCER,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, {DESCRIPTION: description.json})
    return model


class _GraphBuilder:
    """The nodes and constants of an ONNX graph, to which layers are added one by one."""

    def __init__(self, helper: Any, numpy_helper: Any, scale: float, arrays: Mapping[str, np.ndarray]) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.classes = 0
        self._helper, self._numpy_helper, self._arrays = helper, numpy_helper, arrays
        self._scale: float | None = scale  # None once it is applied
        self._at = IMAGES

    def add_layer(self, layer: Layer, shape: Shape) -> None:
        """Add a layer's nodes. shape: (C, H, W) or (features,) of its input. Raises BadValueError if ONNX lacks it."""
        if self._scale is not None and not layer.keeps_bytes:
            self._add_node("Cast", "images/floats", to=self._helper.np_dtype_to_tensor_dtype(np.dtype(np.float32)))
            self._add_node("Mul", "images/scaled", **{"images/scale": np.float32(self._scale)})
            self._scale = None
        match layer:
            case Resize():
                self._add_resize(layer, shape)
            case Conv2d():
                window, strides = [layer.kernel] * 2, [layer.stride] * 2
                self._add_weighted_layer("Conv", layer, kernel_shape=window, strides=strides, pads=[layer.padding] * 4)
            case Linear():
                self._add_weighted_layer("Gemm", layer, transB=1)
            case Pool():
                self._add_pooling(layer, shape)
            case LeakyRelu():
                self._add_node("LeakyRelu", layer.name, alpha=layer.slope)
            case Activation():
                operator = OPERATORS[layer.kind]
                limits = {f"{layer.name}/{name}": value for name, value in LIMITS.get(operator, {}).items()}
                self._add_node(operator, layer.name, **limits)
            case Flatten():
                self._add_node("Flatten", layer.name)
            case Softmax():
                self._add_node("Softmax", layer.name, axis=1)
            case Argmax():
                self.classes = shape[0]
                self.nodes[-1].output[0] = self._at = SCORES
                self._add_node("ArgMax", layer.name, axis=1, keepdims=0)
                self.nodes[-1].output[0] = LABELS
            case _:
                raise BadValueError(f"layer {layer.name} ({layer.kind}) has no form in ONNX; leave it out")

    def _add_resize(self, layer: Resize, shape: Shape) -> None:
        """Add nodes that enlarge images: an integer matrix product along each axis, exact in int32, and a division."""
        name = layer.name
        down, across = (_interpolation_weights(layer, length) for length in shape[1:])
        self._add_node("Cast", f"{name}/int32", to=self._helper.np_dtype_to_tensor_dtype(np.dtype(np.int32)))
        self._add_constant(f"{name}/down", down)
        self.nodes.append(self._helper.make_node("MatMul", [f"{name}/down", self._at], [f"{name}/rows"]))
        self._at = f"{name}/rows"
        self._add_node("MatMul", f"{name}/columns", **{f"{name}/across": np.ascontiguousarray(across.T)})
        if layer.rounding_offset:
            self._add_node("Add", f"{name}/sums", **{f"{name}/rounding": np.int32(layer.rounding_offset)})
        self._add_node("Div", name, **{f"{name}/divisor": np.int32(layer.divisor)})

    def _add_weighted_layer(self, operator: str, layer: Layer, **attributes: Any) -> None:
        ours = [name for name in (layer.name, f"{layer.name}_bias") if name in self._arrays]
        arrays = {torch_key(name): self._arrays[name] for name in ours}
        self._add_node(operator, layer.name, **arrays, **attributes)

    def _add_pooling(self, layer: Pool, shape: Shape) -> None:
        """Add a pooling node, with more padding at the end instead of ONNX's ceil_mode, which may add windows.

        If a mean counts the layer's own padding, a Mul node corrects the divisor: it must not count the added padding.
        """
        margins = layer.window_overhangs(shape)
        attributes: dict[str, Any] = {}
        if any(map(any, margins)):
            attributes["pads"] = [margin[side] for side in (0, 1) for margin in margins]
        if isinstance(layer, AvgPool) and layer.count_padding:
            attributes["count_include_pad"] = 1
        operator = "MaxPool" if layer.is_max else "AveragePool"
        window, strides = [layer.window] * 2, [layer.effective_stride] * 2
        self._add_node(operator, layer.name, kernel_shape=window, strides=strides, **attributes)
        shares = layer.window_pixel_counts(shape) / layer.window**2
        if "count_include_pad" in attributes and (shares < 1).any():
            self._add_node("Mul", f"{layer.name}/counted", **{f"{layer.name}/factors": np.float32(1 / shares)})

    def _add_node(self, operator: str, output: str, **attributes: Any) -> None:
        """Add a node that reads the previous node's output. Arrays among the attributes become constant inputs."""
        constants = {name: value for name, value in attributes.items() if isinstance(value, np.ndarray | np.generic)}
        for name, value in constants.items():
            self._add_constant(name, value)
        rest = {name: value for name, value in attributes.items() if name not in constants}
        inputs, at = [self._at, *constants], f"{output}/output"
        self.nodes.append(self._helper.make_node(operator, inputs, [at], name=output, **rest))
        self._at = at

    def _add_constant(self, name: str, value: np.ndarray | np.generic) -> None:
        self.constants.append(self._numpy_helper.from_array(np.asarray(value), name))


def _interpolation_weights(layer: Resize, length: int) -> np.ndarray:
    """Return the weights of ``length`` input pixels in each output pixel along an axis: (layer.size, length) int32."""
    weights = np.zeros((layer.size, length), np.int32)
    low, high, near, far = layer.neighbours(length)
    rows = np.arange(layer.size)
    weights[rows, low] += near
    weights[rows, high] += far
    return weights


def require_onnx() -> Any:
    """Return the package ``onnx``. Raises BadValueError without it."""
    try:
        import onnx
    except ImportError:
        raise BadValueError(
            f"is an ONNX model, which needs the package onnx: {pip_install_command('interchange')}"
        ) from None
    return onnx
