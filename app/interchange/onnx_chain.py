"""Read an ONNX graph whose nodes form a chain from the images to the scores."""

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.files.checks import BadValueError, format_for_error
from app.interchange.onnx_layers import FLOAT, OnnxLayers
from app.interchange.onnx_values import KEEPING, OF_SMALL, Constants, Node
from app.interchange.onnx_weightless import NO_PADS
from app.layers import Flatten, Shape
from app.network.network import CHANNELS

UINT8 = 2  # TensorProto's number of the type
CHAIN = "export one chain of layers, from the images to the scores"
# Operators that are left out if they do not change the numbers.
RENAMING = ("Cast", "Dropout", "Flatten", "Identity", "Pad", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
CHANNELS_FIRST = ("AveragePool", "BatchNormalization", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")
LABELS_KEPT = ("ArgMax", "Identity", "LogSoftmax", "Softmax")  # operators that may follow a LogSoftmax
READ_PADDED = ("AveragePool", "Cast", "Conv", "Identity", "MaxPool", "Pad", "Transpose")
WITH_CONSTANTS = (
    *("Add", "BatchNormalization", "Clip", "Conv", "Div", "Dropout", "Gemm", "MatMul", "Max", "Mul", "Pad"),
    *("PRelu", "ReduceMax", "ReduceMean", "Reshape", "Squeeze", "Sub", "Unsqueeze"),
)
Reader = Callable[[OnnxLayers, Node, list[np.ndarray], list[str]], None]
READERS: Mapping[str, Reader] = {
    operator: reader
    for reader, operators in {
        OnnxLayers.read_affine: ("Add", "Div", "Mul", "Sub"),
        OnnxLayers.read_argmax: ("ArgMax",),
        OnnxLayers.read_pooling: ("AveragePool", "MaxPool"),
        OnnxLayers.read_batch_norm: ("BatchNormalization",),
        OnnxLayers.read_cast: ("Cast",),
        OnnxLayers.read_clip: ("Clip",),
        OnnxLayers.read_convolution: ("Conv",),
        OnnxLayers.read_no_op: ("Dropout", "Identity"),
        OnnxLayers.read_flatten: ("Flatten",),
        OnnxLayers.read_matrix_product: ("Gemm", "MatMul"),
        OnnxLayers.read_global_pooling: ("GlobalAveragePool", "GlobalMaxPool"),
        OnnxLayers.read_leaky_relu: ("LeakyRelu", "PRelu"),
        OnnxLayers.read_softmax: ("LogSoftmax", "Softmax"),
        OnnxLayers.read_maximum: ("Max",),
        OnnxLayers.read_pad: ("Pad",),
        OnnxLayers.read_reduction: ("ReduceMax", "ReduceMean"),
        OnnxLayers.read_activation_function: ("Relu", "Sigmoid", "Tanh"),
        OnnxLayers.read_reshape: ("Reshape",),
        OnnxLayers.read_squeeze: ("Squeeze",),
        OnnxLayers.read_transpose: ("Transpose",),
        OnnxLayers.read_unsqueeze: ("Unsqueeze",),
    }.items()
    for operator in operators
}


class OnnxGraph(OnnxLayers):
    """The layers of a graph that is one chain from the images to the scores. Raises BadValueError for any other graph.

    input_name, batch, input_shape: name, batch size (0 for any) and shape (C, H, W) of the images. reads_bytes: whether
    they are uint8, not floats. fed_shape: shape of an image as the model reads it. logits: name of the last activation
    before a softmax.
    """

    def __init__(self, graph: Any, opset: int) -> None:
        constants = Constants(graph, opset)
        images = [one for one in graph.input if one.name not in constants]
        if len(images) != 1:
            raise BadValueError(f"has {len(images)} inputs; export it with one, images of shape (N,C,H,W)")
        self.input_name = self.logits = images[0].name
        batch, self.fed_shape, self.reads_bytes = _read_image_input(images[0])
        self.input_shape = _image_shape(self.fed_shape)
        super().__init__(constants, batch, self.input_shape, not self.reads_bytes)
        self._at = {self.input_name}  # names of what the next layer reads
        self._shapes = {self.input_name: self.fed_shape}
        self.stack.channels_last = self._fed_last = len(self.fed_shape) == 3 and self.fed_shape != self.input_shape
        if len(self.fed_shape) == 1:
            self.stack.add_weightless_layer(Flatten(""))
        if self.fed_shape != self.input_shape:
            self.stack.notes.append(f"its images {self.fed_shape} are taken as {self.input_shape}")
        self._labels: set[str] = set()
        for node in graph.node:
            self._read_node(Node(node))
        if self.pads_ahead != NO_PADS:
            raise BadValueError(f"ends with a Pad; {CHAIN}")
        self.stack.add_pending_affine_as_convolution("no layer follows")
        for operator, nodes in self.left_out.items():
            many = f"{len(nodes)} nodes ({operator}): left out, they change no number"
            self.stack.notes.append(many if nodes[1:] else f"{nodes[0]}: left out, it changes no number")
        if not {one.name for one in graph.output} & (self._at | self._labels):
            raise BadValueError(f"does not give out what its last node computes; {CHAIN}")

    def drop_arrays(self) -> None:
        """Drop the constants and weights, to free memory once a ``Source`` has the arrays that it needs."""
        self.constants.drop_all()
        self.stack.found.clear()

    def to_model_shape(self, images: np.ndarray) -> np.ndarray:
        """Return images (N, C, H, W) in the shape that the model reads, such as (N, H, W, C)."""
        return images.transpose(0, 2, 3, 1) if self._fed_last else images.reshape(-1, *self.fed_shape)

    def _read_node(self, node: Node) -> None:
        if node.operator not in (*READERS, *KEEPING, *OF_SMALL, "Constant", "Shape"):
            known = f"known are {', '.join(sorted(READERS))}"
            raise node.error("has an operator that cannot be imported", known)
        if len(node.outputs) != 1:
            raise node.error(f"has {len(node.outputs)} outputs", CHAIN)
        reads = [name for name in node.inputs if name]
        if node.operator == "Shape" and len(reads) == 1 and reads[0] in self._shapes:
            sizes = [self.batch or -1, *self._shapes[reads[0]]]  # -1: any number, as in a Reshape
            part = slice(node.take_attribute("start", 0), node.take_attribute("end", len(sizes)))
            self.constants.define_constant(node.outputs[0], np.array(sizes[part], np.int64))
        elif self.constants.has_all(reads):
            self.constants.fold_node(node)
            return
        elif node.operator in ("Cast", "Identity") and set(reads) <= self._labels:
            node.take_attribute("to", 0)
            self._labels.add(node.outputs[0])
        elif node.operator not in READERS:
            raise node.error("computes with activations", CHAIN)
        else:
            self._read_activation_node(node, [name for name in reads if name not in self._at])
        node.check_all_taken()

    def _read_activation_node(self, node: Node, constants: list[str]) -> None:
        """Convert a node that reads the previous activation and constants with the names ``constants``."""
        commutes = node.operator in ("Add", "Div", "Max", "Mul", "Sub")
        reads_last = bool(set(node.inputs if commutes else node.inputs[:1]) & self._at)
        if not reads_last or self._labels or not self.constants.has_all(constants):
            raise node.error("does not read the layer before it and constants only", CHAIN)
        if constants and node.operator not in WITH_CONSTANTS:
            raise node.error(f"has {len(constants)} inputs too many", "export it again")
        if self.logarithms and node.operator not in LABELS_KEPT:
            raise node.error("stands behind a LogSoftmax", CHAIN)
        if self.stack.channels_last and node.operator in CHANNELS_FIRST:
            raise node.error("reads maps (N,H,W,C) as (N,C,H,W)", "export it again")
        if self.pads_ahead != NO_PADS and node.operator not in READ_PADDED:
            raise node.error("stands behind a Pad", "only a convolution or pooling can follow it")
        known = len(self.stack.found)
        try:
            READERS[node.operator](self, node, [self.constants[name] for name in constants], constants)
        except UserError as error:
            raise node.error(f"does not fit ({error})", "export another network") from None
        if node.operator == "ArgMax":
            self._labels = {node.outputs[0]}
            return
        # The output of a node that does not change the numbers is another name of the activation.
        same = len(self.stack.found) == known and node.operator in RENAMING
        self._at = {*(self._at if same else ()), node.outputs[0]}
        if self.pads_ahead == NO_PADS:
            self._shapes[node.outputs[0]] = self.stack.shape_in_model
        if node.operator not in ("Softmax", "LogSoftmax") and not self.logarithms:
            self.logits = node.outputs[0]


def _read_image_input(images: Any) -> tuple[int, Shape, bool]:
    """Return the batch size (0 for any), the shape of one image as the model reads it, and whether pixels are bytes."""
    kind = images.type.tensor_type
    dims = [one.dim_value for one in kind.shape.dim]
    if kind.elem_type not in (FLOAT, UINT8) or not 2 <= len(dims) <= 4 or min(dims[1:]) < 1:
        shape = "x".join(str(size) if size else "?" for size in dims[:9])
        fault = f"has the input {format_for_error(images.name)} ({shape or 'no shape'})"
        raise BadValueError(f"{fault}; export it with float or uint8 images (N,C,H,W) of known C, H and W")
    return dims[0], tuple(dims[1:]), kind.elem_type == UINT8


def _image_shape(read: Shape) -> Shape:
    """Return (C, H, W) of an image that the model reads in shape ``read``: (C, H, W), (H, W, C), (H, W) or (H·W,).

    Raises BadValueError if H·W pixels do not form a square.
    """
    side = isqrt(read[0])
    if len(read) == 1 and side**2 != read[0]:
        raise BadValueError(f"reads {read[0]:,} pixels, which are no square; export it with images (N,C,H,W)")
    last = len(read) == 3 and read[0] not in CHANNELS and read[2] in CHANNELS
    return (read[2], *read[:2]) if last else {1: (1, side, side), 2: (1, *read), 3: read}[len(read)]
