"""Convert nodes of an ONNX graph that have no weights: poolings, activations, softmax and argmax."""

import numpy as np

from app.interchange.layer_stack import LayerStack, equivalent_pooling
from app.interchange.onnx_values import Constants, Node
from app.layers import ACTIVATIONS, AvgPool, Flatten, LeakyRelu, MaxPool, Relu, Relu6, Shape, Sigmoid, Softmax

NO_PADS = [0] * 4


class WeightlessLayers:
    """Base class of the converter of nodes: the methods for nodes without weights.

    stack: the layers converted so far. logarithms: whether a LogSoftmax was omitted. pads_ahead: padding of Pad nodes
    that the next layer must include: rows above, columns to the left, rows below, columns to the right.
    """

    def __init__(self, constants: Constants, shape: Shape) -> None:
        self.constants = constants
        self.stack = LayerStack(shape)
        self.logarithms = False
        self.pads_ahead = NO_PADS
        self._reordered: Shape | None = None  # shape (C, H, W) of maps that were flattened in H, W, C order

    def read_pooling(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.take_allowed_attribute("dilations", [1, 1])
        window, step = node.take_equal_pair("kernel_shape", 0), node.take_equal_pair("strides", 1)
        ceil = bool(node.take_allowed_attribute("ceil_mode", 0, 1))
        kind = MaxPool if node.operator == "MaxPool" else AvgPool
        pads = node.take_padding(self.stack.shape[1:], window, step)
        counted = bool(node.take_allowed_attribute("storage_order" if kind is MaxPool else "count_include_pad", 0, 1))
        if self.pads_ahead != NO_PADS:
            if ceil or any(pads) or (kind is MaxPool and not self._is_nonnegative()):
                raise node.error("stands behind a Pad", "let the pooling pad, or pad what a ReLU gives")
            pads, counted, self.pads_ahead = self.pads_ahead, True, NO_PADS
        layer = equivalent_pooling(kind, window, step, self.stack.shape, pads, ceil, counted and kind is AvgPool)
        if layer is None:
            known = "only less than its window, the same ahead of rows and columns, and not less behind them"
            raise node.error(f"has pads {pads[:8]}", f"{known}, can be imported")
        self.stack.add_weightless_layer(layer)

    def _is_nonnegative(self) -> bool:
        """Return whether no activation is negative, so that zeros around the maps do not change a maximum."""
        kinds = [type(one.layer) for one in self.stack.found if not isinstance(one.layer, AvgPool | MaxPool)]
        return not self.stack.has_pending and bool(kinds) and kinds[-1] in (Relu, Relu6, Sigmoid)

    def read_global_pooling(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        self._pool_whole_map(node, MaxPool if node.operator == "GlobalMaxPool" else AvgPool)

    def read_reduction(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.take_allowed_attribute("noop_with_empty_axes", 0, 1)  # empty axes are refused below
        if set(self._reduction_axes(node, values)) != ({1, 2} if self.stack.channels_last else {2, 3}):
            raise node.error("is not over height and width", "export another network")
        kept = node.take_allowed_attribute("keepdims", 1, 0)
        self._pool_whole_map(node, AvgPool if node.operator == "ReduceMean" else MaxPool)
        if not kept:
            self._flatten()

    def _pool_whole_map(self, node: Node, kind: type[AvgPool | MaxPool]) -> None:
        shape = self.stack.shape
        if len(shape) != 3 or shape[1] != shape[2]:
            raise node.error(f"reads activations of {shape}", "only square maps have such a pooling window")
        self.stack.notes.append(f"{node.label}: a pooling window of {shape[1]} x {shape[2]}")
        self.stack.add_weightless_layer(kind("", shape[1]))

    def _reduction_axes(self, node: Node, values: list[np.ndarray]) -> list[int]:
        """Return a node's axes, none negative: from its constants, ``values``, or in old opsets from its attribute."""
        axes = [int(axis) for axis in values[0].ravel()[:9]] if values else node.take_attribute("axes", [0])
        return [axis + 1 + len(self.stack.shape) if axis < 0 else axis for axis in axes]

    def read_activation_function(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        self.stack.add_weightless_layer(ACTIVATIONS[node.operator.lower()](""))

    def read_leaky_relu(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        slopes = values[0].ravel() if values else np.array([node.take_attribute("alpha", 0.01)], np.float32)
        if not slopes.size or (slopes != slopes[0]).any() or not 0 <= slopes[0] <= 1:
            shown = ", ".join(f"{slope:g}" for slope in slopes[:4])
            raise node.error(f"has slopes {shown or 'of no number'}", "only one from 0 to 1 can be imported")
        self.stack.add_weightless_layer(LeakyRelu("", float(str(slopes[0]))))  # 0.1, not float32's 0.10000000149

    def read_clip(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        known = [name if name in self.constants else "" for name in node.inputs[1:]]
        limits = [self.constants[name].ravel()[:2].tolist() if name else [] for name in known]
        kind = {(0,): "relu", (0, 6): "relu6"}.get(tuple(limit[0] for limit in limits if len(limit) == 1))
        if kind not in ACTIVATIONS or not limits[0] or known != node.inputs[1:]:
            raise node.error("has other limits than 0 and 6", "train with ReLU or ReLU6")
        self.stack.add_weightless_layer(ACTIVATIONS[kind](""))

    def read_maximum(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        if len(node.inputs) != 2 or len(values) != 1 or values[0].size != 1 or values[0].item() != 0:
            raise node.error("has another limit than 0", "train with ReLU")
        self.stack.add_weightless_layer(Relu(""))

    def read_softmax(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.take_allowed_attribute("axis", -1, 1)
        if self.stack.found and isinstance(self.stack.found[-1].layer, Softmax):
            raise node.error("stands behind a softmax", "remove one of the two")
        if node.operator == "Softmax":
            self.stack.add_weightless_layer(Softmax(""))
        else:
            self.logarithms = True
            self.stack.notes.append(f"{node.label}: left out: the labels are the same, the logits those that it reads")

    def read_argmax(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        if node.take_attribute("axis", 0) not in (-1, 1):
            raise node.error("is not over the classes", "export it with axis 1")
        node.take_allowed_attribute("keepdims", 1, 0)
        node.take_allowed_attribute("select_last_index", 0)

    def _flatten(self) -> None:
        if len(self.stack.shape) == 3:
            self._reordered = self.stack.shape if self.stack.channels_last else None
            self.stack.channels_last = False
            self.stack.add_weightless_layer(Flatten(""))
