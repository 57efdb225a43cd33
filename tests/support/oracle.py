"""Run networks as ONNX models by ONNX Runtime, without code of this program's engines."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from app import layers
from app.layers import Layer, Shape
from app.layers.pool import Pool
from app.network.definitions import Network
from tests.support.network_oracle import resize_weights

OPSET, IR_VERSION = 17, 8  # old enough for every onnxruntime that the tests accept


def onnx_outputs(network: Network, arrays: Mapping[str, np.ndarray], images: np.ndarray) -> dict[str, np.ndarray]:
    """Return each layer's output by name for scaled float32 images (B, C, H, W). Skips the test without ONNX."""
    onnx = pytest.importorskip("onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    names = [layer.name for layer in network.layers]
    nodes: list[Any] = []
    constants: list[Any] = []
    x, shape = "images", network.input_shape
    for layer in network.layers:
        new_nodes, new_constants = _translate(helper, layer, x, shape, arrays)
        nodes += new_nodes
        constants += [onnx.numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in new_constants.items()]
        x, shape = layer.name, layer.output_shape(shape)
    types = [onnx.TensorProto.INT64 if isinstance(layer, layers.Argmax) else floats for layer in network.layers]
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, types, strict=True)]
    inputs = [helper.make_tensor_value_info("images", floats, ["batch", *network.input_shape])]
    return dict(zip(names, run_nodes(nodes, inputs, outputs, constants, {"images": images}), strict=True))


def run_nodes(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any], feeds: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Return the outputs of a model of these nodes, run on one thread. Skips the test without ONNX Runtime."""
    runtime = pytest.importorskip("onnxruntime")
    from onnx import helper

    graph = helper.make_graph(nodes, "nodes", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, dict(feeds))
    return found


def onnx_logits(network: Network, arrays: Mapping[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """Return the scores before the argmax, (B, classes) float32, for scaled images as in ``onnx_outputs``."""
    return onnx_outputs(network, arrays, images)[network.layers[-2].name]


def _translate(
    helper: Any, layer: Layer, x: str, shape: Shape, arrays: Mapping[str, np.ndarray]
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Return the ONNX nodes that compute the layer from tensor ``x``, and the constants that the nodes use."""
    y, weights, bias = layer.name, f"{layer.name}_weights", f"{layer.name}_bias"
    constants: dict[str, np.ndarray] = {bias: arrays[bias]} if bias in arrays else {}

    def node(operator: str, *reads: str, to: str = y, **attributes: Any) -> Any:
        return helper.make_node(operator, reads, [to], **attributes)

    match layer:
        case layers.Conv2d():
            constants[weights] = arrays[layer.name].transpose(3, 2, 0, 1)
            reads = [x, weights, bias] if bias in constants else [x, weights]
            window, strides, pads = [layer.kernel] * 2, [layer.stride] * 2, [layer.padding] * 4
            return [node("Conv", *reads, kernel_shape=window, strides=strides, pads=pads)], constants
        case Pool():
            operator = {layers.AvgPool: "AveragePool", layers.MaxPool: "MaxPool"}[type(layer)]
            step = layer.window if layer.stride is None else layer.stride
            attributes: dict[str, Any] = {"kernel_shape": [layer.window] * 2, "strides": [step] * 2}
            behind = layer.padding + layer.extra_padding
            attributes |= {"pads": [layer.padding] * 2 + [behind] * 2, "ceil_mode": int(layer.ceil)}
            attributes |= {"count_include_pad": 1} if isinstance(layer, layers.AvgPool) and layer.count_padding else {}
            return [node(operator, x, **attributes)], constants
        case layers.Resize():
            return _resized(node, layer, x, shape)
        case layers.Relu6():
            limits = {"zero": np.float32(0), "six": np.float32(6)}
            return [node("Clip", x, *limits)], {name: np.asarray(value) for name, value in limits.items()}
        case layers.LeakyRelu():
            return [node("LeakyRelu", x, alpha=layer.slope)], constants
        case layers.Activation():
            return [node(type(layer).__name__, x)], constants
        case layers.Softmax():
            return [node("Softmax", x, axis=1)], constants
        case layers.Flatten():
            channels_last = f"{layer.name}_channels_last"
            transpose = node("Transpose", x, to=channels_last, perm=[0, 2, 3, 1])
            return [transpose, node("Flatten", channels_last)], constants
        case layers.Linear():
            constants[weights] = arrays[layer.name]
            if bias in constants:
                return [node("Gemm", x, weights, bias)], constants
            return [node("MatMul", x, weights)], constants
        case layers.Argmax():
            return [node("ArgMax", x, axis=1, keepdims=0)], constants
    raise TypeError(f"the oracle does not know {layer.kind}")


def _resized(
    node: Callable[..., Any], layer: layers.Resize, x: str, shape: Shape
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Return nodes that multiply by integer weights along each axis, exactly in float32, then round or cut.

    ONNX's operator Resize computes in float32 and may round an exact half the other way.
    """
    unit = 2 * layer.size
    down, across = (resize_weights(length, layer.size, layer.rule) for length in shape[1:])
    values: dict[str, np.ndarray] = {"down": down, "across": across.T, "white": np.array(255.0)}
    values |= {"half": np.array(unit**2 / 2 if layer.rule == "edge" else 0), "divisor": np.array(float(unit**2))}
    nodes: list[Any] = []
    at = x
    for operator, constant in (
        *(("Mul", "white"), ("Round", ""), ("MatMul", "down"), ("MatMul", "across")),
        *(("Add", "half"), ("Div", "divisor"), ("Floor", ""), ("Div", "white")),
    ):
        reads = [at, *([f"{layer.name}_{constant}"] if constant else [])]
        at = f"{layer.name}_{len(nodes)}" if len(nodes) < 7 else layer.name
        nodes.append(node(operator, *(reversed(reads) if constant == "down" else reads), to=at))
    return nodes, {f"{layer.name}_{name}": value.astype(np.float32) for name, value in values.items()}
