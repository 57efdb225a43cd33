"""Read the chain of an ONNX graph's nodes as layers. Every node and attribute is checked; unknown ones are refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.files.checks import BadValueError, format_for_error
from app.interchange.onnx_values import Node, array_of
from app.layers import ACTIVATIONS, AvgPool, Conv2d, Flatten, Layer, Linear, MaxPool, Shape, Softmax

FLOAT, UINT8 = 1, 2  # TensorProto's types
CHAIN = "export one chain of layers, from the images to the scores"


@dataclass
class Found:
    """One unnamed layer; its arrays in PyTorch's layout and their names in the file, by suffix "" and "_bias"."""

    layer: Layer
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def add_array(self, end: str, origin: str, array: np.ndarray) -> None:
        """Add an array."""
        self.arrays[end], self.origins[end] = array, origin


class OnnxGraph:
    """The layers of a graph, up to the scores.

    input_name, batch, input_shape, reads_bytes: the images; batch is 0 for any number of them. factor: what images are
    multiplied by first, None for nothing. logits: name of the last activation before a softmax.
    """

    def __init__(self, graph: Any) -> None:
        self.found: list[Found] = []
        self.factor: float | None = None
        self._tensors = {one.name: one for one in graph.initializer}
        self._arrays: dict[str, np.ndarray] = {}
        images = [one for one in graph.input if one.name not in self._tensors]
        if len(images) != 1:
            raise BadValueError(f"has {len(images)} inputs; export it with one, images of shape (N,C,H,W)")
        self.input_name = self.logits = images[0].name
        self.batch, self.input_shape, self.reads_bytes = _read_image_input(images[0])
        self._floats = not self.reads_bytes
        self._shape: Shape = self.input_shape
        self._at = {self.input_name}  # names of what the next layer reads
        self._labels: set[str] = set()
        for node in graph.node:
            self._read(Node(node))
        if not {one.name for one in graph.output} & (self._at | self._labels):
            raise BadValueError(f"does not give out what its last node computes; {CHAIN}")

    def _read(self, node: Node) -> None:
        if node.operator not in READERS:
            raise node.fault("has an operator that cannot be imported", f"known are {', '.join(sorted(READERS))}")
        if len(node.outputs) != 1:
            raise node.fault(f"has {len(node.outputs)} outputs", CHAIN)
        reads = [name for name in node.inputs if name]
        if node.operator == "Constant":
            self._arrays[node.outputs[0]] = array_of(node.take("value", None), node.outputs[0])
        elif node.operator == "Identity" and self._is_constant(reads):
            self._arrays[node.outputs[0]] = self._value(reads[0])
        elif node.operator in ("Cast", "Identity") and reads and set(reads) <= self._labels:
            node.take("to", 0)
            self._labels.add(node.outputs[0])
        else:
            self._read_activation_node(node, [name for name in reads if name not in self._at])
        node.check_all_taken()

    def _read_activation_node(self, node: Node, constants: list[str]) -> None:
        """Read a node that computes the next activation from the last."""
        commutes = node.operator in ("Add", "Mul")
        reads_last = bool(set(node.inputs if commutes else node.inputs[:1]) & self._at)
        if not reads_last or self._labels or not self._is_constant(constants):
            raise node.fault("does not read the layer before it and constants only", CHAIN)
        if constants and node.operator not in WITH_CONSTANTS:
            raise node.fault(f"has {len(constants)} inputs too many", "export it again")
        known = len(self.found)
        try:
            READERS[node.operator](self, node, [self._value(name) for name in constants], constants)
            for one in self.found[known:]:
                self._shape = one.layer.output_shape(self._shape)
        except UserError as error:
            raise node.fault(f"does not fit ({error})", "export another network") from None
        if node.operator == "ArgMax":
            self._labels = {node.outputs[0]}
            return
        # A node that does not change the numbers renames the activation.
        same = len(self.found) == known and node.operator in ("Identity", "Dropout", "Flatten", "Reshape")
        self._at = {*(self._at if same else ()), node.outputs[0]}
        if node.operator != "Softmax":
            self.logits = node.outputs[0]

    def _is_constant(self, names: list[str]) -> bool:
        return all(name in self._arrays or name in self._tensors for name in names)

    def _value(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = array_of(self._tensors[name], name)
        return self._arrays[name]

    # Readers of one node. ``values``: its constant inputs; ``names``: their names.

    def read_convolution(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        if len(values) not in (1, 2) or values[0].ndim != 4 or values[0].shape[2] != values[0].shape[3]:
            raise node.fault("has filters that are not square, or no constants", "export another network")
        maps, channels, kernel, _ = values[0].shape
        for name, only in {"group": 1, "auto_pad": b"NOTSET", "dilations": [1, 1]}.items():
            node.require_attribute(name, only)
        node.require_attribute("kernel_shape", [kernel, kernel])
        layer = Conv2d("", maps, kernel, node.uniform_attribute("strides", 1), node.uniform_attribute("pads", 0, 4))
        if channels != self._shape[0]:
            raise node.fault(f"has filters of {channels:,} channels for {self._shape[0]:,}", "get a fresh copy")
        self._add_weighted_layer(node, layer, values[0], values[1:], names)

    def read_matrix_product(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        most, transposed = 1, 0
        if node.operator == "Gemm":
            for name, only in {"alpha": 1.0, "beta": 1.0, "transA": 0}.items():
                node.require_attribute(name, only)
            most, transposed = 2, node.require_attribute("transB", 0, 1)
        if not 1 <= len(values) <= most or values[0].ndim != 2:
            raise node.fault("does not multiply features by a constant matrix", "export another network")
        weights = values[0] if transposed else values[0].T
        self._add_weighted_layer(node, Linear("", len(weights)), weights, values[1:], names)

    def _add_weighted_layer(
        self, node: Node, layer: Conv2d | Linear, weights: np.ndarray, bias: list[np.ndarray], names: list[str]
    ) -> None:
        self._check_floats(node)
        if isinstance(layer, Linear) and self._shape != weights.shape[1:]:
            raise node.fault(f"has a matrix for {weights.shape[1]:,} features, not {self._shape}", "get a fresh copy")
        self.found.append(Found(layer))
        self.found[-1].add_array("", names[0], weights)
        if bias:
            self._add_bias(node, bias[0], names[1])

    def read_bias_addition(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        if len(values) != 1 or not self.found or set(self.found[-1].arrays) != {""} or len(self._shape) != 1:
            raise node.fault("is no bias of a MatMul before it", "export another network")
        self._add_bias(node, values[0], names[0])

    def _add_bias(self, node: Node, bias: np.ndarray, name: str) -> None:
        outputs = len(self.found[-1].arrays[""])
        if bias.size != outputs or bias.shape[-1:] != (outputs,):
            raise node.fault(f"has a bias of shape {bias.shape} for {outputs:,} outputs", "export another network")
        self.found[-1].add_array("_bias", name, bias.reshape(outputs))

    def read_pooling(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        for name, only in {"auto_pad": b"NOTSET", "dilations": [1, 1]}.items():
            node.require_attribute(name, only)
        window, step, ceil = (
            node.uniform_attribute("kernel_shape", 0),
            node.uniform_attribute("strides", 1),
            bool(node.require_attribute("ceil_mode", 0, 1)),
        )
        kind = MaxPool if node.operator == "MaxPool" else AvgPool
        layer = kind("", window, None if step == window else step, ceil)
        # Padding at the end that completes the last windows is another way of writing ceil.
        completed = replace(layer, ceil=True)
        padding = [0, 0, *(end for _, end in completed.end_padding(self._shape))]
        padded = node.require_attribute("pads", [0] * 4, *([] if ceil else [padding])) != [0] * 4
        # Without padding, both values of count_include_pad give the mean of the pixels inside the image.
        node.require_attribute("storage_order" if kind is MaxPool else "count_include_pad", 0, *([] if padded else [1]))
        self.found.append(Found(completed if padded else layer))

    def read_activation_function(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        self.found.append(Found(ACTIVATIONS[node.operator.lower()]("")))

    def read_softmax(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.require_attribute("axis", -1, 1)
        self.found.append(Found(Softmax("")))

    def read_argmax(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        if node.take("axis", 0) not in (-1, 1):
            raise node.fault("is not over the classes", "export it with axis 1")
        node.require_attribute("keepdims", 1, 0)
        node.require_attribute("select_last_index", 0)

    def read_flatten(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.require_attribute("axis", 1)
        if len(self._shape) == 3:
            self.found.append(Found(Flatten("")))

    def read_reshape(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.require_attribute("allowzero", 0)
        wanted = [int(number) for number in values[0].ravel()] if values else []
        if len(wanted) != 2 or wanted[0] not in (-1, 0, self.batch) or wanted[1] not in (-1, prod(self._shape)):
            raise node.fault("gives another shape than (N, features)", "flatten the maps of each image")
        if len(self._shape) == 3:
            self.found.append(Found(Flatten("")))

    def read_cast(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        if node.take("to", 0) != FLOAT:
            raise node.fault("gives no floats", "cast the images to float only")
        node.require_attribute("saturate", 1)
        self._check_before_weights(node)
        self._floats = True

    def read_scaling(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        self._check_before_weights(node)
        self._check_floats(node)
        if len(values) != 1 or values[0].size != 1:
            raise node.fault("does not scale the images by one constant", "export another network")
        factor = float(values[0].ravel()[0])
        with np.errstate(all="ignore"):
            factor = float(np.float64(1) / factor) if node.operator == "Div" else factor
        self.factor = factor * (1 if self.factor is None else self.factor)

    def _check_floats(self, node: Node) -> None:
        if not self._floats:
            raise node.fault("computes with bytes", "cast the images to float before it")

    def _check_before_weights(self, node: Node) -> None:
        if any(not isinstance(one.layer, Flatten) for one in self.found):
            raise node.fault("stands behind a layer with weights", "only the images can be cast and scaled")

    def read_no_op(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.take("seed", 0)
        if any(value.dtype == bool and value.any() for value in values):
            raise node.fault("is in training mode", "export the network in evaluation mode")


WITH_CONSTANTS = ("Add", "Conv", "Div", "Dropout", "Gemm", "MatMul", "Mul", "Reshape")
READERS: Mapping[str, Callable[[OnnxGraph, Node, list[np.ndarray], list[str]], None]] = {
    "Add": OnnxGraph.read_bias_addition,
    "ArgMax": OnnxGraph.read_argmax,
    "AveragePool": OnnxGraph.read_pooling,
    "Cast": OnnxGraph.read_cast,
    "Constant": OnnxGraph.read_no_op,
    "Conv": OnnxGraph.read_convolution,
    "Div": OnnxGraph.read_scaling,
    "Dropout": OnnxGraph.read_no_op,
    "Flatten": OnnxGraph.read_flatten,
    "Gemm": OnnxGraph.read_matrix_product,
    "Identity": OnnxGraph.read_no_op,
    "MatMul": OnnxGraph.read_matrix_product,
    "MaxPool": OnnxGraph.read_pooling,
    "Mul": OnnxGraph.read_scaling,
    "Relu": OnnxGraph.read_activation_function,
    "Reshape": OnnxGraph.read_reshape,
    "Sigmoid": OnnxGraph.read_activation_function,
    "Softmax": OnnxGraph.read_softmax,
    "Tanh": OnnxGraph.read_activation_function,
}


def _read_image_input(images: Any) -> tuple[int, Shape, bool]:
    """Return the batch size (0 for any), the shape of one image, and whether its pixels are bytes."""
    kind = images.type.tensor_type
    dims = [one.dim_value for one in kind.shape.dim]
    if kind.elem_type not in (FLOAT, UINT8) or len(dims) != 4 or min(dims[1:]) < 1:
        shape = "x".join(str(size) if size else "?" for size in dims[:9])
        fault = f"has the input {format_for_error(images.name)} ({shape or 'no shape'})"
        raise BadValueError(f"{fault}; export it with float or uint8 images (N,C,H,W) of known C, H and W")
    return dims[0], tuple(dims[1:]), kind.elem_type == UINT8
