"""Turn Keras' layers into ours. What this project has no layer for is folded into its neighbours, or refused."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from app.base.errors import UserError
from app.files.checks import format_for_error
from app.interchange.folding import BatchNorm, fold_batch_norm
from app.interchange.keras import computed
from app.interchange.keras.chain import NOT_RUN, KerasLayer, KerasModel
from app.interchange.keras.network import OTHERS, GrowingNetwork
from app.interchange.keras.settings import Settings
from app.interchange.layer_stack import fitting_pool
from app.interchange.numbers import as_float32
from app.layers import ACTIVATIONS, AvgPool, Conv2d, LeakyRelu, Linear, MaxPool, Shape, Softmax
from app.network.network import LEAST_SCALE, MAX_SIDE, MOST_SCALE, PIXEL_SCALE

DAMAGED = "get a fresh copy"
FindPaths = Callable[[KerasLayer, Sequence[str], Iterable[str]], dict[str, str]]


def read_layers(model: KerasModel, arrays: Mapping[str, np.ndarray], find_paths: FindPaths) -> GrowingNetwork:
    """Read a model's layers. find_paths: returns where a layer's arrays are, by role. Raises BadValueError."""
    reader = _LayerReader(arrays, find_paths, GrowingNetwork(model.input_shape))
    for layer in model.layers:
        reader.read(layer)
    if model.layers and reader.network.pending is not None:
        reader.network.keep_pending(model.layers[-1])
    return reader.network


class _LayerReader:
    """Reads one layer after another into ``network``."""

    def __init__(self, arrays: Mapping[str, np.ndarray], find_paths: FindPaths, network: GrowingNetwork) -> None:
        self.network = network
        self._arrays, self._find_paths = arrays, find_paths

    def read(self, layer: KerasLayer) -> None:
        if layer.kind in ONLY_IN_TRAINING:
            self.network.notes.append(f"{layer.name} ({layer.kind}) is left out: it acts only in training")
            return
        if layer.kind not in READERS:
            known = f"known are {', '.join(sorted(READERS))}"
            raise layer.fault("cannot be imported", NOT_RUN if layer.kind == "Lambda" else known)
        settings = Settings(layer)
        try:
            READERS[layer.kind](self, settings)
        except UserError as error:
            raise layer.fault(f"does not fit ({error})", OTHERS) from None
        settings.check_all_taken()

    def _arrays_of(self, layer: KerasLayer, roles: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Return the arrays of a layer and their paths in the file, by role."""
        paths = self._find_paths(layer, roles, self._arrays)
        return {role: as_float32(path, self._arrays[path], self.network.notes) for role, path in paths.items()}, paths

    def _kernel_and_bias(
        self, settings: Settings, shape: Shape
    ) -> tuple[np.ndarray, np.ndarray | None, dict[str, str]]:
        """Return kernel, bias and their paths by our suffix. shape: what the kernel must have."""
        roles = ("kernel", "bias") if settings.require("use_bias", True, False) else ("kernel",)
        arrays, paths = self._arrays_of(settings.layer, roles)
        for role, wanted in zip(roles, (shape, shape[-1:]), strict=False):
            if arrays[role].shape != wanted:
                raise settings.layer.fault(f"has a {role} of {arrays[role].shape}, needs {wanted}", DAMAGED)
        return arrays["kernel"], arrays.get("bias"), dict(zip(("", "_bias"), paths.values(), strict=False))

    def _require_maps(self, settings: Settings) -> None:
        if len(self.network.shape) != 3:
            raise settings.layer.fault(f"reads {self.network.shape}, not (H, W, C)", "put a Reshape before it")
        settings.require("data_format", "channels_last")

    def _require_features(self, settings: Settings) -> None:
        if len(self.network.shape) != 1:
            raise settings.layer.fault(f"reads {self.network.shape}, not features", "put a Flatten before it")
        if not self.network.layers:
            self.network.split_features(settings.layer)

    def read_convolution(self, settings: Settings) -> None:
        self._require_maps(settings)
        network, layer = self.network, settings.layer
        size, stride, maps = settings.square("kernel_size"), settings.square("strides", 1), settings.count("filters")
        settings.require("groups", 1)
        if settings.square("dilation_rate", 1) != 1:
            raise layer.fault("has a dilation_rate", "only 1 can be imported")
        kernel, bias, origins = self._kernel_and_bias(settings, (size, size, network.shape[2], maps))
        padding = before, behind = settings.padding(network.shape, size, stride)
        network.steps.append(computed.convolution(kernel, bias, stride, padding))
        if behind and network.pending is not None and network.pending[1].any():
            network.keep_pending(layer)  # the padding is 0, the offset of an image's pixels is not
        arrays = network.absorb(kernel, bias)
        if before != behind:
            arrays[""] = np.pad(arrays[""], ((1, 0), (1, 0), (0, 0), (0, 0)))
            network.notes.append(f"{layer.name} pads one side more: its filters get a row and a column of zeros")
        network.add(Conv2d("", maps, len(arrays[""]), stride, behind), arrays, origins)
        self.read_activation(settings)

    def read_dense(self, settings: Settings) -> None:
        self._require_features(settings)
        units = settings.count("units")
        kernel, bias, origins = self._kernel_and_bias(settings, (*self.network.shape, units))
        self.network.steps.append(computed.product(kernel, bias))
        self.network.add(Linear("", units), self.network.absorb(kernel, bias), origins)
        self.read_activation(settings)

    def read_activation(self, settings: Settings) -> None:
        """Read the setting ``activation``: a name or a layer."""
        name = settings.take("activation", "linear")
        if isinstance(name, dict):
            kind, inside = name.get("class_name"), name.get("config")
            if kind in ("LeakyReLU", "ReLU", "Softmax") and isinstance(inside, dict):
                self.read(replace(settings.layer, kind=kind, settings=inside))
                return
            name = inside if isinstance(inside, str) else kind
        if name == "leaky_relu":
            self._apply_leaky_relu(settings.layer, 0.2)  # Keras' default for the name
        elif name != "linear":
            self._apply(settings.layer, name)

    def _apply(self, layer: KerasLayer, name: object) -> None:
        if name not in (*computed.ACTIVATIONS, "softmax"):
            known = ", ".join(("linear", *computed.ACTIVATIONS, "leaky_relu", "softmax"))
            raise layer.fault(f"has the activation {format_for_error(name)}", f"known are {known}")
        self._put_weights_first(layer, also=self.network.pending is not None)
        if name == "softmax":
            self.network.add(Softmax(""))
            return
        self.network.steps.append(computed.ACTIVATIONS[str(name)])
        self.network.add(ACTIVATIONS[str(name)](""))

    def _apply_leaky_relu(self, layer: KerasLayer, slope: float) -> None:
        if not 0 <= slope <= 1:
            raise layer.fault(f"has a slope of {slope:g}", "only one from 0 to 1 can be imported")
        self._put_weights_first(layer, also=self.network.pending is not None)
        self.network.steps.append(computed.leaky_relu(slope))
        self.network.add(LeakyRelu("", slope))

    def _put_weights_first(self, layer: KerasLayer, also: bool) -> None:
        """Put a layer with weights before one that cannot be the first; ``also`` one with what is pending."""
        if also or not any(self.network.arrays):
            self.network.keep_pending(layer)

    def read_relu(self, settings: Settings) -> None:
        limited = settings.require("max_value", None, 6) == 6
        settings.require("threshold", 0)
        slope = settings.slope(0)
        if slope and not limited:
            self._apply_leaky_relu(settings.layer, slope)
            return
        if slope:
            raise settings.layer.fault("has a slope and a max_value", OTHERS)
        self._apply(settings.layer, "relu6" if limited else "relu")

    def read_leaky_relu(self, settings: Settings) -> None:
        self._apply_leaky_relu(settings.layer, settings.slope(0.3))

    def read_softmax(self, settings: Settings) -> None:
        settings.require("axis", -1, len(self.network.shape))
        self._apply(settings.layer, "softmax")

    def read_pooling(self, settings: Settings) -> None:
        self._require_maps(settings)
        window = settings.square("pool_size", 2)
        stride = settings.square("strides", window)
        padding = settings.padding(self.network.shape, window, stride)
        if padding[1] and window > 2 and not POOLINGS[settings.layer.kind].is_max:
            mean = "means are of the pixels inside, as on TensorFlow and JAX; Keras on PyTorch repeats the last ones"
            self.network.notes.append(f"{settings.layer.name} crosses the border: {mean}")
        self._pool(settings.layer, window, stride, padding)

    def _pool(self, layer: KerasLayer, window: int, stride: int, padding: tuple[int, int]) -> None:
        kind, pending = POOLINGS[layer.kind], self.network.pending
        # A maximum of numbers times a negative factor is that of the smallest.
        self._put_weights_first(layer, also=kind.is_max and pending is not None and bool((pending[0] < 0).any()))
        self.network.steps.append(computed.pooling(window, stride, padding, kind.is_max))
        before, behind = padding
        maps = (self.network.shape[2], *self.network.shape[:2])
        pool = fitting_pool(kind, window, stride, maps, [before, before, behind, behind])
        if pool is None:
            raise layer.fault(f"reads maps of {maps[1]} x {maps[2]}, less than its window of {window}", OTHERS)
        self.network.add(pool)

    def read_global_pooling(self, settings: Settings) -> None:
        self._require_maps(settings)
        height, width, _ = self.network.shape
        if height != width:
            raise settings.layer.fault(f"reads maps of {height} x {width}", "only square ones can be imported")
        if height > 1:
            self._pool(settings.layer, height, height, (0, 0))
        if not settings.require("keepdims", False, True):
            self._flatten()

    def _flatten(self) -> None:
        self.network.steps.append(lambda x: x.reshape(len(x), -1))
        self.network.flatten()

    def read_flatten(self, settings: Settings) -> None:
        settings.require("data_format", "channels_last")
        self._flatten()

    def read_reshape(self, settings: Settings) -> None:
        network, target = self.network, settings.take("target_shape")
        shape, count = network.shape, prod(network.shape)
        sizes = target if isinstance(target, list) and all(type(size) is int for size in target) else []
        known = prod(size for size in sizes if size != -1)
        wanted = tuple(count // known if size == -1 and known else size for size in sizes)
        if not wanted or min(wanted) < 1 or prod(wanted) != count:
            raise settings.layer.fault(f"does not make another shape of {shape}", DAMAGED)
        images = not network.layers and (len(shape) == 1 or wanted[:2] == shape[:2]) and len(wanted) in (2, 3)
        scaled_apart = network.pending is not None and network.pending[0].ndim > 0
        if len(wanted) == 1:
            self._flatten()
        elif wanted != shape:
            if not images or max(wanted[:2]) > MAX_SIDE or scaled_apart:
                raise settings.layer.fault(f"makes {wanted} of {shape}", "only images and features can be made")
            network.shape = wanted
            network.steps.append(lambda x: x.reshape(len(x), *wanted))

    def read_rescaling(self, settings: Settings) -> None:
        network, channels = self.network, self.network.shape[-1] if len(self.network.shape) == 3 else 1
        factor, offset = settings.numbers("scale", 1, channels), settings.numbers("offset", 0, channels)
        network.steps.append(lambda x: x * factor + offset)
        if network.layers or network.pending is not None or network.pixel_scale is not None:
            network.scale(factor, offset)
            return
        shared = not factor.ndim and LEAST_SCALE <= factor <= MOST_SCALE
        exact = shared and np.float32(factor) == np.float32(PIXEL_SCALE)
        network.pixel_scale = PIXEL_SCALE if exact else float(factor) if shared else 1.0
        network.scale(np.ones_like(factor) if shared else factor, offset)
        network.notes.append(f"{settings.layer.name} (Rescaling) is the scale of pixels, and part of the next layer")

    def read_batch_norm(self, settings: Settings) -> None:
        network, layer = self.network, settings.layer
        rank, count = len(network.shape), network.shape[-1]
        settings.require("axis", -1, rank, [rank])
        if rank == 2:
            raise layer.fault(f"reads {network.shape}", "put a Reshape before it")
        has = {role: settings.require(key, True, False) for role, key in (("gamma", "scale"), ("beta", "center"))}
        roles = (*(role for role in has if has[role]), "moving_mean", "moving_variance")
        arrays, _ = self._arrays_of(layer, roles)
        scale, shift = arrays.get("gamma", np.ones(count)), arrays.get("beta", np.zeros(count))
        mean, variance, epsilon = arrays["moving_mean"], arrays["moving_variance"], settings.numbers("epsilon", 1e-3, 1)
        norm = BatchNorm(format_for_error(layer.name), scale, shift, mean, variance, float(epsilon))
        factor, offset = fold_batch_norm(np.ones((1, count)), None, norm)
        network.steps.append(computed.batch_norm(norm))
        if network.arrays and network.arrays[-1] and network.pending is None:
            found = network.arrays[-1]
            found[""], found["_bias"] = fold_batch_norm(found[""], found.get("_bias"), norm)
            network.notes.append(f"{layer.name} (BatchNormalization) is folded into the layer before it")
            return
        network.scale(factor[0].astype(np.float64), offset.astype(np.float64))
        network.notes.append(f"{layer.name} (BatchNormalization) is folded into the layer behind it")


POOLINGS: Mapping[str, type[AvgPool] | type[MaxPool]] = {
    "AveragePooling2D": AvgPool,
    "GlobalAveragePooling2D": AvgPool,
    "GlobalMaxPooling2D": MaxPool,
    "MaxPooling2D": MaxPool,
}
READERS: Mapping[str, Callable[[_LayerReader, Settings], None]] = {
    "Activation": _LayerReader.read_activation,
    "AveragePooling2D": _LayerReader.read_pooling,
    "BatchNormalization": _LayerReader.read_batch_norm,
    "Conv2D": _LayerReader.read_convolution,
    "Dense": _LayerReader.read_dense,
    "Flatten": _LayerReader.read_flatten,
    "GlobalAveragePooling2D": _LayerReader.read_global_pooling,
    "GlobalMaxPooling2D": _LayerReader.read_global_pooling,
    "LeakyReLU": _LayerReader.read_leaky_relu,
    "MaxPooling2D": _LayerReader.read_pooling,
    "ReLU": _LayerReader.read_relu,
    "Rescaling": _LayerReader.read_rescaling,
    "Reshape": _LayerReader.read_reshape,
    "Softmax": _LayerReader.read_softmax,
}
ONLY_IN_TRAINING = (
    *("ActivityRegularization", "AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout2D"),
    *("RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom", "RandomContrast", "RandomBrightness"),
)
