"""Convert nodes of an ONNX graph to layers; nodes with unknown attributes are errors.

onnx_weightless.py converts nodes without weights.
"""

from math import prod

import numpy as np

from app.files.checks import format_for_error
from app.interchange.layer_stack import BatchNorm, pad_filters_equally, reorder_to_channels_first
from app.interchange.onnx_values import Constants, Node
from app.interchange.onnx_weightless import NO_PADS, WeightlessLayers
from app.layers import Conv2d, Linear, Shape

FLOAT = 1  # TensorProto's number of the type


class OnnxLayers(WeightlessLayers):
    """Converts one node after another to layers, which ``stack`` collects.

    batch: images per batch, 0 for any number. floats: whether the activations are floats, not still bytes. factor:
    number by which the model multiplies all pixels; None without one. contrast: greatest number by which it multiplies
    the pixels of a channel; None without one. left_out: operator → labels of its nodes that have no effect.
    """

    def __init__(self, constants: Constants, batch: int, shape: Shape, floats: bool) -> None:
        super().__init__(constants, shape)
        self.batch = batch
        self.floats = floats
        self.factor: float | None = None
        self.contrast: float | None = None
        self.left_out: dict[str, list[str]] = {}

    # Each method converts one node. values: the node's constant inputs. names: their names.

    def read_convolution(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        if len(values) not in (1, 2) or values[0].ndim != 4 or values[0].shape[2] != values[0].shape[3]:
            raise node.error("has filters that are not square, or no constants", "export another network")
        maps, channels, kernel, _ = values[0].shape
        for name, only in {"group": 1, "dilations": [1, 1]}.items():
            node.take_allowed_attribute(name, only)
        node.take_allowed_attribute("kernel_shape", [kernel, kernel])
        stride = node.take_equal_pair("strides", 1)
        pads = node.take_padding(self.stack.shape[1:], kernel, stride)
        pads = [one + other for one, other in zip(pads, self.pads_ahead, strict=True)] if len(pads) == 4 else pads
        self.pads_ahead = NO_PADS
        if len(pads) != 4 or pads[0] != pads[1] or pads[2] != pads[3] or not 0 <= min(pads) <= max(pads) < 2 * kernel:
            raise node.error(f"has pads {pads[:8]}", "only equal padding of height and width can be imported")
        filters, padding = pad_filters_equally(values[0], pads[0], pads[2])
        if filters is not values[0]:
            self.stack.notes.append(f"{node.label}: its filters get zeros, to be padded by {padding} on all sides")
        if channels != self.stack.shape[0]:
            raise node.error(f"has filters of {channels:,} channels for {self.stack.shape[0]:,}", "get a fresh copy")
        layer = Conv2d("", maps, filters.shape[2], stride, padding)
        self._add_weighted_layer(node, layer, filters, values[1:], names)

    def read_pad(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.take_allowed_attribute("mode", b"constant")
        pads = [int(size) for size in values[0].ravel()[:9]] if values else []
        still, sides = ((0, 3), (1, 2)) if self.stack.channels_last else ((0, 1), (2, 3))
        if (
            len(pads) != 8
            or any(pads[at] or pads[at + 4] for at in still)
            or len(values) > 2
            or any(value.any() for value in values[1:])
        ):
            raise node.error("pads with other than zeros around height and width", "export another network")
        more = [pads[at + end] for end in (0, 4) for at in sides]
        self.pads_ahead = [one + other for one, other in zip(self.pads_ahead, more, strict=True)]

    def read_matrix_product(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        most, transposed = 1, 0
        if node.operator == "Gemm":
            for name, only in {"alpha": 1.0, "beta": 1.0, "transA": 0}.items():
                node.take_allowed_attribute(name, only)
            most, transposed = 2, node.take_allowed_attribute("transB", 0, 1)
        if not 1 <= len(values) <= most or values[0].ndim != 2:
            raise node.error("does not multiply features by a constant matrix", "export another network")
        weights = values[0] if transposed else values[0].T
        if self._reordered is not None and weights.shape[1] == prod(self._reordered):
            weights, self._reordered = reorder_to_channels_first(weights, self._reordered), None
        if self.stack.shape != weights.shape[1:]:
            shape = self.stack.shape
            raise node.error(f"has a matrix for {weights.shape[1]:,} features, not {shape}", "get a fresh copy")
        self._add_weighted_layer(node, Linear("", len(weights)), weights, values[1:], names)

    def _add_weighted_layer(
        self, node: Node, layer: Conv2d | Linear, weights: np.ndarray, bias: list[np.ndarray], names: list[str]
    ) -> None:
        self._check_floats(node)
        arrays = {"": weights}
        if bias:
            arrays["_bias"] = self._values_per_map(node, bias[0], len(weights), 1)
        self.stack.add_weighted_layer(layer, arrays, dict(zip(("", "_bias"), names, strict=False)))

    def read_affine(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        """Convert an Add, Sub, Mul or Div: a bias, scale or normalisation. values, names: one constant, its name."""
        self._check_floats(node)
        if len(values) != 1 or values[0].dtype.kind != "f":
            raise node.error("computes with other than one constant of floats", "export another network")
        value = values[0].astype(np.float64)
        with np.errstate(all="ignore"):  # infinite and NaN values show in the weights
            value = np.reciprocal(value) if node.operator == "Div" else -value if node.operator == "Sub" else value
        multiplies = node.operator in ("Div", "Mul")
        constant_first = node.inputs[0] in names
        if constant_first and node.operator == "Div":
            raise node.error("divides by an activation", "export another network")
        if multiplies and value.size == 1 and self.stack.has_no_weights and not self.stack.has_pending and value > 0:
            self._multiply_contrast(value)
            self.factor = value.item() * (1 if self.factor is None else self.factor)
            return
        value = self._values_per_map(node, value, self.stack.shape[0], len(self.stack.shape))
        last = self.stack.found[-1] if self.stack.found else None
        alone = last is not None and isinstance(last.layer, Linear) and last.arrays.keys() == {""}
        if node.operator == "Add" and last is not None and alone:
            last.arrays["_bias"], last.origins["_bias"] = self._values_per_map(node, values[0], len(value), 1), names[0]
        elif multiplies:
            self._add_affine(node, value, np.zeros_like(value))
        elif constant_first and node.operator == "Sub":
            self._add_affine(node, -np.ones_like(value), -value)
        else:
            self._add_affine(node, np.ones_like(value), value)

    def read_batch_norm(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        self._check_floats(node)
        node.take_allowed_attribute("training_mode", 0)
        node.take_attribute("momentum", 0.9)
        if len(values) != 4:
            raise node.error("has no four constants", "export the network in evaluation mode")
        scale, shift, mean, variance = values
        norm = BatchNorm(
            format_for_error(node.name), scale, shift, mean, variance, node.take_attribute("epsilon", 1e-5)
        )
        count = self.stack.shape[0]
        self._add_affine(node, *(self._values_per_map(node, one, count, 1) for one in norm.factor_and_shift(count)))

    def _add_affine(self, node: Node, factor: np.ndarray, shift: np.ndarray) -> None:
        if self.stack.has_no_weights:
            self._multiply_contrast(factor)
        self.stack.add_affine(factor, shift, node.label)

    def _multiply_contrast(self, factor: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            self.contrast = (1.0 if self.contrast is None else self.contrast) * float(np.abs(factor).max())

    def _values_per_map(self, node: Node, value: np.ndarray, count: int, dimensions: int) -> np.ndarray:
        """Return (count,) numbers, one per map or feature, from a constant that broadcasts to ``dimensions`` axes."""
        shapes = [(*ones, count, *(1,) * (dimensions - 1)) for ones in ((), (1,))]
        if self.stack.channels_last and dimensions == 3:
            shapes = [(*(1,) * ones, count) for ones in range(4)]
        if value.shape in shapes:
            value = value.reshape(1, count)
            return reorder_to_channels_first(value, self._reordered)[0] if self._reordered is not None else value[0]
        if value.size != 1:
            raise node.error(
                f"has a constant of shape {value.shape[:8]}", f"only one for each of {count:,} can be folded"
            )
        return np.full(count, value.item(), value.dtype)

    def read_flatten(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.take_allowed_attribute("axis", 1, -len(self.stack.shape))
        self._flatten()

    def read_reshape(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        copies = not node.take_allowed_attribute("allowzero", 0, 1)
        shape, wanted = self.stack.shape_in_model, [int(size) for size in values[0].ravel()[:9]] if values else []
        batch = [-1, *([0] if copies else []), *([self.batch] if self.batch else [])]
        rest = [shape[at] if size == 0 and copies and at < len(shape) else size for at, size in enumerate(wanted[1:])]
        if rest.count(-1) == 1 and 0 not in rest:
            rest[rest.index(-1)] = prod(shape) // -prod(rest)
        if not rest or wanted[0] not in batch or min(rest) < 1 or prod(rest) != prod(shape):
            raise node.error("gives another shape than (N, features)", "flatten the maps of each image")
        channels, *sides = self.stack.shape
        moved = (channels, *sides) if self.stack.channels_last else (*sides, channels)
        if len(rest) == 3 and tuple(rest) == moved != shape and 1 in (channels, prod(sides)):
            self.stack.channels_last = not self.stack.channels_last
        elif tuple(rest) != shape:
            if max(rest) != prod(shape):
                raise node.error("gives another shape than (N, features)", "flatten the maps of each image")
            self._flatten()

    def read_squeeze(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        axes, shape = self._reduction_axes(node, values), self.stack.shape
        if 0 in axes or (len(shape) == 3 and ((3 if self.stack.channels_last else 1) in axes or shape[1:] != (1, 1))):
            raise node.error("does not leave (N, features)", "flatten the maps of each image")
        self._flatten()

    def read_unsqueeze(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        """Note where a node adds the channel axis to images (N, H, W): first or last. ``stack.shape`` has it anyway."""
        axes = self._reduction_axes(node, values)
        if self.stack.found or self.stack.shape[0] != 1 or axes not in ([1], [3]):
            raise node.error("gives another shape than (N, 1, H, W)", "export it with images (N,C,H,W)")
        self.stack.channels_last = axes == [3]

    def read_transpose(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        wanted = [0, 3, 1, 2] if self.stack.channels_last else [0, 2, 3, 1]
        if node.take_attribute("perm", [0]) != wanted or len(self.stack.shape) != 3:
            raise node.error("does not exchange (N,C,H,W) and (N,H,W,C)", "export another network")
        self.stack.channels_last = not self.stack.channels_last

    def read_cast(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        if node.take_attribute("to", 0) != FLOAT:
            raise node.error("gives no floats", "cast the images to float only")
        node.take_allowed_attribute("saturate", 1)
        if self.floats:
            self._skip_node(node)
        self.floats = True

    def _check_floats(self, node: Node) -> None:
        if not self.floats:
            raise node.error("computes with bytes", "cast the images to float before it")

    def read_no_op(self, node: Node, values: list[np.ndarray], names: list[str]) -> None:
        node.take_attribute("seed", 0)
        if any(value.dtype == bool and value.any() for value in values):
            raise node.error("is in training mode", "export the network in evaluation mode")
        self._skip_node(node)

    def _skip_node(self, node: Node) -> None:
        self.left_out.setdefault(node.operator, []).append(node.label)
