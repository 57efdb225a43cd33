"""Convert Keras' layers without weights: activations, poolings, flattening, reshaping and zero padding."""

from collections.abc import Mapping
from math import prod

import numpy as np

from app.files.checks import format_for_error
from app.interchange.keras import computed
from app.interchange.keras.chain import DAMAGED, OTHERS, KerasLayer, Settings
from app.interchange.keras.network import GrowingNetwork
from app.interchange.layer_stack import equivalent_pooling
from app.layers import ACTIVATIONS, AvgPool, LeakyRelu, MaxPool, Relu, Relu6, Sigmoid, Softmax
from app.network.network import MAX_SIDE

NO_ZEROS = (0, 0)

POOLINGS: Mapping[str, type[AvgPool] | type[MaxPool]] = {
    "AveragePooling2D": AvgPool,
    "GlobalAveragePooling2D": AvgPool,
    "GlobalMaxPooling2D": MaxPool,
    "MaxPooling2D": MaxPool,
}


class WeightlessReader:
    """Converts Keras layers without weights and adds them to ``network``.

    zeros: number of rows, and of columns, that ZeroPadding2D layers add before and after the maps that the next layer
    reads. ended: a layer that must be the last one, or None.
    """

    def __init__(self, network: GrowingNetwork) -> None:
        self.network = network
        self.zeros = NO_ZEROS
        self.ended: KerasLayer | None = None

    def _require_spatial_input(self, settings: Settings) -> None:
        if len(self.network.shape) != 3:
            raise settings.layer.error(f"reads {self.network.shape}, not (H, W, C)", "put a Reshape before it")
        settings.take_choice("data_format", "channels_last")

    def _add_activation(self, layer: KerasLayer, name: object) -> None:
        if name not in (*computed.ACTIVATIONS, "softmax"):
            known = ", ".join(("linear", *computed.ACTIVATIONS, "leaky_relu", "softmax", "log_softmax"))
            raise layer.error(f"has the activation {format_for_error(name)}", f"known are {known}")
        self._add_pending_scale_if_needed(layer, also=self.network.pending is not None)
        if name == "softmax":
            self.network.add_layer(Softmax(""))
            return
        self.network.steps.append(computed.ACTIVATIONS[str(name)])
        self.network.add_layer(ACTIVATIONS[str(name)](""))

    def _add_leaky_relu(self, layer: KerasLayer, slope: float) -> None:
        if not 0 <= slope <= 1:
            raise layer.error(f"has a slope of {slope:g}", "only one from 0 to 1 can be imported")
        self._add_pending_scale_if_needed(layer, also=self.network.pending is not None)
        self.network.steps.append(computed.leaky_relu_step(slope))
        self.network.add_layer(LeakyRelu("", slope))

    def _add_pending_scale_if_needed(self, layer: KerasLayer, also: bool) -> None:
        """Add a layer for the pending factor and offset if no layer before ``layer`` has weights, or if ``also``."""
        if also or not any(one.arrays for one in self.network.found):
            self.network.add_pending_scale_as_layer(layer)

    def read_relu(self, settings: Settings) -> None:
        limited = settings.take_choice("max_value", None, 6) == 6
        settings.take_choice("threshold", 0)
        slope = settings.take_slope(0)
        if slope and not limited:
            self._add_leaky_relu(settings.layer, slope)
            return
        if slope:
            raise settings.layer.error("has a slope and a max_value", OTHERS)
        self._add_activation(settings.layer, "relu6" if limited else "relu")

    def read_leaky_relu(self, settings: Settings) -> None:
        self._add_leaky_relu(settings.layer, settings.take_slope(0.3))

    def read_softmax(self, settings: Settings) -> None:
        settings.take_choice("axis", -1, len(self.network.shape))
        self._add_activation(settings.layer, "softmax")

    def read_pooling(self, settings: Settings) -> None:
        self._require_spatial_input(settings)
        window = settings.take_equal_pair("pool_size", 2)
        stride = settings.take_equal_pair("strides", window)
        padding = settings.take_padding(self._padded_shape, window, stride)
        if self.zeros != NO_ZEROS:
            if padding != (0, 0):
                raise settings.layer.error("pads what a ZeroPadding2D pads", "pad once")
            self._add_padded_pooling(settings.layer, window, stride)
            return
        if padding[1] and window > 2 and not POOLINGS[settings.layer.kind].is_max:
            mean = "means are of the pixels inside, as on TensorFlow and JAX; Keras on PyTorch repeats the last ones"
            self.network.notes.append(f"{settings.layer.name} crosses the border: {mean}")
        self._add_pooling(settings.layer, window, stride, padding)

    def _add_padded_pooling(self, layer: KerasLayer, window: int, stride: int) -> None:
        """Pool maps and the zeros around them. Raises BadValueError for maxima of maps that may be negative."""
        found, pending = self.network.found, self.network.pending
        behind_relu = pending is None and found and isinstance(found[-1].layer, Relu | Relu6 | Sigmoid)
        if POOLINGS[layer.kind].is_max and not behind_relu:
            raise layer.error("stands behind a ZeroPadding2D", "let it pad itself, or pad what a ReLU gives")
        zeros, self.zeros = self.zeros, NO_ZEROS
        self._add_pooling(layer, window, stride, zeros, counted=True)

    def _add_pooling(
        self, layer: KerasLayer, window: int, stride: int, padding: tuple[int, int], counted: bool = False
    ) -> None:
        kind, pending = POOLINGS[layer.kind], self.network.pending
        # A negative factor would turn a maximum into a minimum; zeros that a mean counts must not be shifted.
        apart = pending is not None and bool((pending[0] < 0).any() if kind.is_max else counted and pending[1].any())
        self._add_pending_scale_if_needed(layer, also=apart)
        if counted:
            self.network.steps.append(lambda x: np.pad(x, ((0, 0), padding, padding, (0, 0))))
        self.network.steps.append(computed.pooling_step(window, stride, (0, 0) if counted else padding, kind.is_max))
        before, behind = padding
        maps = (self.network.shape[2], *self.network.shape[:2])
        pool = equivalent_pooling(kind, window, stride, maps, [before, before, behind, behind], counted=counted)
        if pool is None:
            sides = f"{maps[1]} x {maps[2]}, padded by {before} and {behind}"
            raise layer.error(f"reads maps of {sides}, which its window of {window} does not fit", OTHERS)
        self.network.add_layer(pool)

    def read_global_pooling(self, settings: Settings) -> None:
        self._require_spatial_input(settings)
        height, width, _ = self.network.shape
        if height != width:
            raise settings.layer.error(f"reads maps of {height} x {width}", "only square ones can be imported")
        if height > 1:
            self._add_pooling(settings.layer, height, height, (0, 0))
        if not settings.take_choice("keepdims", False, True):
            self._flatten()

    def _flatten(self) -> None:
        self.network.steps.append(lambda x: x.reshape(len(x), -1))
        self.network.flatten()

    def read_flatten(self, settings: Settings) -> None:
        settings.take_choice("data_format", "channels_last")
        self._flatten()

    def read_reshape(self, settings: Settings) -> None:
        network, target = self.network, settings.take_setting("target_shape")
        shape, count = network.shape, prod(network.shape)
        sizes = target if isinstance(target, list) and all(type(size) is int for size in target) else []
        known = prod(size for size in sizes if size != -1)
        wanted = tuple(count // known if size == -1 and known else size for size in sizes)
        if not wanted or min(wanted) < 1 or prod(wanted) != count:
            raise settings.layer.error(f"does not make another shape of {shape}", DAMAGED)
        images = not network.found and (len(shape) == 1 or wanted[:2] == shape[:2]) and len(wanted) in (2, 3)
        scaled_apart = network.pending is not None and network.pending[0].ndim > 0
        if len(wanted) == 1:
            self._flatten()
        elif wanted != shape:
            if not images or max(wanted[:2]) > MAX_SIDE or scaled_apart:
                raise settings.layer.error(f"makes {wanted} of {shape}", "only images and features can be made")
            network.shape = wanted
            network.steps.append(lambda x: x.reshape(len(x), *wanted))

    @property
    def _padded_shape(self) -> tuple[int, ...]:
        """Return the shape (H, W, C) of the maps including the zeros around them."""
        return (*(side + sum(self.zeros) for side in self.network.shape[:2]), self.network.shape[2])

    def read_zero_padding(self, settings: Settings) -> None:
        self._require_spatial_input(settings)
        found = settings.take_setting("padding", [1, 1])
        sides = found if isinstance(found, list) else [found] * 2
        ends = [side if isinstance(side, list) else [side] * 2 for side in sides]
        fits = len(ends) == 2 and ends[0] == ends[1] and len(ends[0]) == 2
        if not fits or not all(type(one) is int and 0 <= one <= MAX_SIDE for one in ends[0]):
            raise settings.layer.error(f"has padding {format_for_error(found)}", "only that of rows and columns alike")
        before, behind = (one + other for one, other in zip(self.zeros, ends[0], strict=True))
        self.zeros = before, behind

    def skip_log_softmax(self, layer: KerasLayer) -> None:
        """Omit a log-softmax, which does not change the labels, and add a note. No layer may follow."""
        if self.network.found and isinstance(self.network.found[-1].layer, Softmax):
            raise layer.error("takes the log_softmax of a softmax", "remove one of the two")
        self.network.notes.append(f"{layer.name}: its log_softmax is left out: the labels are the same")
        self.ended = layer
