"""Read single nodes of an ONNX graph as layers. Every attribute is checked; unknown ones are refused."""

from dataclasses import replace
from math import prod

import numpy as np

from app.files.checks import format_for_error
from app.interchange.folding import BatchNorm
from app.interchange.layer_stack import LayerStack, in_channels_first, with_equal_padding
from app.interchange.onnx_values import Constants, Node
from app.layers import ACTIVATIONS, AvgPool, Conv2d, Flatten, LeakyRelu, Linear, MaxPool, Shape, Softmax

FLOAT = 1  # TensorProto's type
NO_PADS = [0] * 4


class OnnxLayers:
    """The layers that the nodes so far make of the images.

    stack: the layers. floats: whether the activations are floats, or still bytes. factor: what images are multiplied by
    first, None for nothing. contrast: the same with each map's factors, the largest; None where nothing scales them.
    logarithms: whether a LogSoftmax was left out. left_out: nodes without effect, by operator. pads_ahead: of a Pad.
    """

    def __init__(self, constants: Constants, batch: int, shape: Shape, floats: bool) -> None:
        self.constants = constants
        self.batch = batch
        self.stack = LayerStack(shape)
        self.floats = floats
        self.factor: float | None = None
        self.contrast: float | None = None
        self.logarithms = False
        self.left_out: dict[str, list[str]] = {}
        self.pads_ahead = NO_PADS
        self._reordered: Shape | None = None  # the maps whose pixels were flattened in H, W, C order

    # Readers of one node. ``values``: its constant inputs; ``names``: their names.

    def read_convolution(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        if len(values) not in (1, 2) or values[0].ndim != 4 or values[0].shape[2] != values[0].shape[3]:
            raise node.fault("has filters that are not square, or no constants", "export another network")
        maps, channels, kernel, _ = values[0].shape
        for name, only in {"group": 1, "dilations": [1, 1]}.items():
            node.require_attribute(name, only)
        node.require_attribute("kernel_shape", [kernel, kernel])
        stride = node.uniform_attribute("strides", 1)
        pads = node.padding(self.stack.shape[1:], kernel, stride)
        pads = [one + other for one, other in zip(pads, self.pads_ahead, strict=True)] if len(pads) == 4 else pads
        self.pads_ahead = NO_PADS
        if len(pads) != 4 or pads[0] != pads[1] or pads[2] != pads[3] or not 0 <= min(pads) <= max(pads) < 2 * kernel:
            raise node.fault(f"has pads {pads[:8]}", "only equal padding of height and width can be imported")
        filters, padding = with_equal_padding(values[0], pads[0], pads[2])
        if filters is not values[0]:
            self.stack.notes.append(f"{node.label}: its filters get zeros, to be padded by {padding} on all sides")
        if channels != self.stack.shape[0]:
            raise node.fault(f"has filters of {channels:,} channels for {self.stack.shape[0]:,}", "get a fresh copy")
        layer = Conv2d("", maps, filters.shape[2], stride, padding)
        self._add_weighted_layer(node, layer, filters, values[1:], names)

    def read_pad(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.require_attribute("mode", b"constant")
        pads = [int(size) for size in values[0].ravel()[:9]] if values else []
        still, sides = ((0, 3), (1, 2)) if self.stack.channels_last else ((0, 1), (2, 3))
        if (
            len(pads) != 8
            or any(pads[at] or pads[at + 4] for at in still)
            or len(values) > 2
            or any(value.any() for value in values[1:])
        ):
            raise node.fault("pads with other than zeros around height and width", "export another network")
        more = [pads[at + end] for end in (0, 4) for at in sides]
        self.pads_ahead = [one + other for one, other in zip(self.pads_ahead, more, strict=True)]

    def read_matrix_product(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        most, transposed = 1, 0
        if node.operator == "Gemm":
            for name, only in {"alpha": 1.0, "beta": 1.0, "transA": 0}.items():
                node.require_attribute(name, only)
            most, transposed = 2, node.require_attribute("transB", 0, 1)
        if not 1 <= len(values) <= most or values[0].ndim != 2:
            raise node.fault("does not multiply features by a constant matrix", "export another network")
        weights = values[0] if transposed else values[0].T
        if self._reordered is not None and weights.shape[1] == prod(self._reordered):
            weights, self._reordered = in_channels_first(weights, self._reordered), None
        if self.stack.shape != weights.shape[1:]:
            shape = self.stack.shape
            raise node.fault(f"has a matrix for {weights.shape[1]:,} features, not {shape}", "get a fresh copy")
        self._add_weighted_layer(node, Linear("", len(weights)), weights, values[1:], names)

    def _add_weighted_layer(
        self, node: Node, layer: Conv2d | Linear, weights: np.ndarray, bias: list[np.ndarray], names: list[str]
    ) -> None:
        self._check_floats(node)
        arrays = {"": weights}
        if bias:
            arrays["_bias"] = self._per_map(node, bias[0], len(weights), 1)
        self.stack.add_weighted(layer, arrays, dict(zip(("", "_bias"), names, strict=False)))

    def read_affine(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        """Read what adds or multiplies constants: a bias, the scale of the pixels, a normalisation."""
        self._check_floats(node)
        if len(values) != 1 or values[0].dtype.kind != "f":
            raise node.fault("computes with other than one constant of floats", "export another network")
        value = values[0].astype(np.float64)
        with np.errstate(all="ignore"):  # infinite and NaN values show in the weights
            value = np.reciprocal(value) if node.operator == "Div" else -value if node.operator == "Sub" else value
        multiplies = node.operator in ("Div", "Mul")
        constant_first = node.inputs[0] in names
        if constant_first and node.operator == "Div":
            raise node.fault("divides by an activation", "export another network")
        if multiplies and value.size == 1 and self.stack.before_weights and not self.stack.pending and value > 0:
            self._count_contrast(value)
            self.factor = value.item() * (1 if self.factor is None else self.factor)
            return
        value = self._per_map(node, value, self.stack.shape[0], len(self.stack.shape))
        last = self.stack.found[-1] if self.stack.found else None
        alone = last is not None and isinstance(last.layer, Linear) and last.arrays.keys() == {""}
        if node.operator == "Add" and last is not None and alone:
            last.arrays["_bias"], last.origins["_bias"] = self._per_map(node, values[0], len(value), 1), names[0]
        elif multiplies:
            self._add_affine(node, value, np.zeros_like(value))
        elif constant_first and node.operator == "Sub":
            self._add_affine(node, -np.ones_like(value), -value)
        else:
            self._add_affine(node, np.ones_like(value), value)

    def read_batch_norm(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        self._check_floats(node)
        node.require_attribute("training_mode", 0)
        node.take("momentum", 0.9)
        if len(values) != 4:
            raise node.fault("has no four constants", "export the network in evaluation mode")
        scale, shift, mean, variance = values
        norm = BatchNorm(format_for_error(node.name), scale, shift, mean, variance, node.take("epsilon", 1e-5))
        count = self.stack.shape[0]
        self._add_affine(node, *(self._per_map(node, one, count, 1) for one in norm.affine(count)))

    def _add_affine(self, node: Node, factor: np.ndarray, shift: np.ndarray) -> None:
        if self.stack.before_weights:
            self._count_contrast(factor)
        self.stack.add_affine(factor, shift, node.label)

    def _count_contrast(self, factor: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            self.contrast = (1.0 if self.contrast is None else self.contrast) * float(np.abs(factor).max())

    def _per_map(self, node: Node, value: np.ndarray, count: int, dimensions: int) -> np.ndarray:
        """Return one number for each map or feature, from a constant that ONNX spreads over the activations."""
        shapes = [(*ones, count, *(1,) * (dimensions - 1)) for ones in ((), (1,))]
        if self.stack.channels_last and dimensions == 3:
            shapes = [(*(1,) * ones, count) for ones in range(4)]
        if value.shape in shapes:
            value = value.reshape(1, count)
            return in_channels_first(value, self._reordered)[0] if self._reordered is not None else value[0]
        if value.size != 1:
            raise node.fault(
                f"has a constant of shape {value.shape[:8]}", f"only one for each of {count:,} can be folded"
            )
        return np.full(count, value.item(), value.dtype)

    def read_pooling(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.require_attribute("dilations", [1, 1])
        window, step, ceil = (
            node.uniform_attribute("kernel_shape", 0),
            node.uniform_attribute("strides", 1),
            bool(node.require_attribute("ceil_mode", 0, 1)),
        )
        kind = MaxPool if node.operator == "MaxPool" else AvgPool
        layer = kind("", window, None if step == window else step, ceil)
        # Padding at the end that completes the last windows is another way of writing ceil.
        completed = replace(layer, ceil=True)
        padding = [0, 0, *(end for _, end in completed.end_padding(self.stack.shape))]
        pads = node.padding(self.stack.shape[1:], window, step)
        padded = pads != [0] * 4
        if padded and (ceil or pads != padding):
            known = f"{[0] * 4} or {padding}"
            raise node.fault(f"has pads {format_for_error(str(pads))}", f"only {known} can be imported")
        # Without padding, both values of count_include_pad give the mean of the pixels inside the image.
        node.require_attribute("storage_order" if kind is MaxPool else "count_include_pad", 0, *([] if padded else [1]))
        self.stack.add(completed if padded else layer)

    def read_global_pooling(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        self._pool_whole_map(node, MaxPool if node.operator == "GlobalMaxPool" else AvgPool)

    def read_mean(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.require_attribute("noop_with_empty_axes", 0)
        if set(self._axes(node, values)) != ({1, 2} if self.stack.channels_last else {2, 3}):
            raise node.fault("is not over height and width", "export another network")
        kept = node.require_attribute("keepdims", 1, 0)
        self._pool_whole_map(node, AvgPool if node.operator == "ReduceMean" else MaxPool)
        if not kept:
            self._flatten()

    def _pool_whole_map(self, node: Node, kind: type[AvgPool | MaxPool]) -> None:
        shape = self.stack.shape
        if len(shape) != 3 or shape[1] != shape[2]:
            raise node.fault(f"reads activations of {shape}", "only square maps have such a pooling window")
        self.stack.notes.append(f"{node.label}: a pooling window of {shape[1]} x {shape[2]}")
        self.stack.add(kind("", shape[1]))

    def _axes(self, node: Node, values: list[np.ndarray]) -> list[int]:
        """Return a node's axes, from its second input or, in old opsets, its attribute."""
        axes = [int(axis) for axis in values[0].ravel()[:9]] if values else node.take("axes", [0])
        return [axis + 1 + len(self.stack.shape) if axis < 0 else axis for axis in axes]

    def read_activation_function(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        self.stack.add(ACTIVATIONS[node.operator.lower()](""))

    def read_leaky_relu(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        slopes = values[0].ravel() if values else np.array([node.take("alpha", 0.01)], np.float32)
        if not slopes.size or (slopes != slopes[0]).any() or not 0 <= slopes[0] <= 1:
            shown = ", ".join(f"{slope:g}" for slope in slopes[:4])
            raise node.fault(f"has slopes {shown or 'of no number'}", "only one from 0 to 1 can be imported")
        self.stack.add(LeakyRelu("", float(str(slopes[0]))))  # the shortest number of these bits

    def read_clip(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        known = [name if name in self.constants else "" for name in node.inputs[1:]]
        limits = [self.constants[name].ravel()[:2].tolist() if name else [] for name in known]
        kind = {(0,): "relu", (0, 6): "relu6"}.get(tuple(limit[0] for limit in limits if len(limit) == 1))
        if kind not in ACTIVATIONS or not limits[0] or known != node.inputs[1:]:
            raise node.fault("has other limits than 0 and 6", "train with ReLU or ReLU6")
        self.stack.add(ACTIVATIONS[kind](""))

    def read_softmax(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.require_attribute("axis", -1, 1)
        if node.operator == "Softmax":
            self.stack.add(Softmax(""))
        else:
            self.logarithms = True
            self.stack.notes.append(f"{node.label}: left out: the labels are the same, the logits those that it reads")

    def read_argmax(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        if node.take("axis", 0) not in (-1, 1):
            raise node.fault("is not over the classes", "export it with axis 1")
        node.require_attribute("keepdims", 1, 0)
        node.require_attribute("select_last_index", 0)

    def read_flatten(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.require_attribute("axis", 1, -len(self.stack.shape))
        self._flatten()

    def read_reshape(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        copies = not node.require_attribute("allowzero", 0, 1)
        shape, wanted = self.stack.seen, [int(size) for size in values[0].ravel()[:9]] if values else []
        batch = [-1, *([0] if copies else []), *([self.batch] if self.batch else [])]
        rest = [shape[at] if size == 0 and copies and at < len(shape) else size for at, size in enumerate(wanted[1:])]
        if rest.count(-1) == 1 and 0 not in rest:
            rest[rest.index(-1)] = prod(shape) // -prod(rest)
        if not rest or wanted[0] not in batch or min(rest) < 1 or prod(rest) != prod(shape):
            raise node.fault("gives another shape than (N, features)", "flatten the maps of each image")
        channels, *sides = self.stack.shape
        moved = (channels, *sides) if self.stack.channels_last else (*sides, channels)
        if len(rest) == 3 and tuple(rest) == moved != shape and 1 in (channels, prod(sides)):
            self.stack.channels_last = not self.stack.channels_last
        elif tuple(rest) != shape:
            if max(rest) != prod(shape):
                raise node.fault("gives another shape than (N, features)", "flatten the maps of each image")
            self._flatten()

    def read_squeeze(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        axes, shape = self._axes(node, values), self.stack.shape
        if 0 in axes or (len(shape) == 3 and ((3 if self.stack.channels_last else 1) in axes or shape[1:] != (1, 1))):
            raise node.fault("does not leave (N, features)", "flatten the maps of each image")
        self._flatten()

    def read_unsqueeze(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        """Read what gives images (N, H, W) their one channel, which they have here from the beginning."""
        axes = self._axes(node, values)
        if self.stack.found or self.stack.shape[0] != 1 or axes not in ([1], [3]):
            raise node.fault("gives another shape than (N, 1, H, W)", "export it with images (N,C,H,W)")

        self.stack.channels_last = axes == [3]

    def read_transpose(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        wanted = [0, 3, 1, 2] if self.stack.channels_last else [0, 2, 3, 1]
        if node.take("perm", [0]) != wanted or len(self.stack.shape) != 3:
            raise node.fault("does not exchange (N,C,H,W) and (N,H,W,C)", "export another network")
        self.stack.channels_last = not self.stack.channels_last

    def _flatten(self) -> None:
        if len(self.stack.shape) == 3:
            self._reordered = self.stack.shape if self.stack.channels_last else None
            self.stack.channels_last = False
            self.stack.add(Flatten(""))

    def read_cast(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        if node.take("to", 0) != FLOAT:
            raise node.fault("gives no floats", "cast the images to float only")
        node.require_attribute("saturate", 1)
        if self.floats:
            self._leave_out(node)
        self.floats = True

    def _check_floats(self, node: Node) -> None:
        if not self.floats:
            raise node.fault("computes with bytes", "cast the images to float before it")

    def read_no_op(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.take("seed", 0)
        if any(value.dtype == bool and value.any() for value in values):
            raise node.fault("is in training mode", "export the network in evaluation mode")
        self._leave_out(node)

    def _leave_out(self, node: Node) -> None:
        self.left_out.setdefault(node.operator, []).append(node.label)
