"""Convert Keras' layers to this project's layers; fold layers that this project lacks into others, or refuse them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.base.errors import UserError
from app.files.checks import format_for_error
from app.interchange.keras import computed
from app.interchange.keras.chain import DAMAGED, NOT_RUN, OTHERS, KerasLayer, KerasModel, Settings
from app.interchange.keras.network import GrowingNetwork
from app.interchange.keras.weightless import NO_ZEROS, WeightlessReader
from app.interchange.layer_stack import BRIGHT, BatchNorm, fold_batch_norm
from app.interchange.source import as_float32
from app.layers import Conv2d, Linear, Shape
from app.network.network import LEAST_SCALE, MOST_SCALE, PIXEL_SCALE

FindPaths = Callable[[KerasLayer, Sequence[str], Iterable[str]], dict[str, str]]
"""Takes a layer, roles of arrays such as ``kernel``, and all paths in the file; returns the path for each role."""


def read_layers(model: KerasModel, arrays: Mapping[str, np.ndarray], find_paths: FindPaths) -> GrowingNetwork:
    """Return a model's network. arrays: path in the file → array. find_paths: returns the paths of a layer's arrays."""
    reader = _LayerReader(arrays, find_paths, GrowingNetwork(model.input_shape))
    for layer in model.layers:
        reader.read_layer(layer)
    if reader.zeros != NO_ZEROS:
        raise model.layers[-1].error("ends the model with zeros around maps", OTHERS)
    if model.layers and reader.network.pending is not None:
        reader.network.add_pending_scale_as_layer(model.layers[-1])
    return reader.network


class _LayerReader(WeightlessReader):
    """Converts one Keras layer after another and adds it to ``network``."""

    def __init__(self, arrays: Mapping[str, np.ndarray], find_paths: FindPaths, network: GrowingNetwork) -> None:
        super().__init__(network)
        self._arrays, self._find_paths = arrays, find_paths

    def read_layer(self, layer: KerasLayer) -> None:
        if layer.kind in ONLY_IN_TRAINING:
            does = "changes nothing" if layer.kind == "Identity" else "acts only in training"
            self.network.notes.append(f"{layer.name} ({layer.kind}) is left out: it {does}")
            return
        if layer.kind not in READERS:
            known = f"known are {', '.join(sorted(READERS))}"
            raise layer.error("cannot be imported", NOT_RUN if layer.kind == "Lambda" else known)
        if self.ended is not None:
            raise layer.error(f"stands behind the log_softmax of {self.ended.name}", OTHERS)
        if self.zeros != NO_ZEROS and layer.kind not in READ_PADDED:
            raise layer.error("stands behind a ZeroPadding2D", "only a convolution or pooling can follow it")
        settings = Settings(layer)
        try:
            READERS[layer.kind](self, settings)
        except UserError as error:
            raise layer.error(f"does not fit ({error})", OTHERS) from None
        settings.check_all_taken()

    def _layer_arrays(self, layer: KerasLayer, roles: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Return the arrays of a layer and their paths in the file, by role such as ``kernel``."""
        paths = self._find_paths(layer, roles, self._arrays)
        return {role: as_float32(path, self._arrays[path], self.network.notes) for role, path in paths.items()}, paths

    def _kernel_and_bias(
        self, settings: Settings, shape: Shape
    ) -> tuple[np.ndarray, np.ndarray | None, dict[str, str]]:
        """Return a layer's kernel of this shape, its bias or None, and their paths in the file by "" and "_bias"."""
        roles = ("kernel", "bias") if settings.take_choice("use_bias", True, False) else ("kernel",)
        arrays, paths = self._layer_arrays(settings.layer, roles)
        for role, wanted in zip(roles, (shape, shape[-1:]), strict=False):
            if arrays[role].shape != wanted:
                raise settings.layer.error(f"has a {role} of {arrays[role].shape}, needs {wanted}", DAMAGED)
        return arrays["kernel"], arrays.get("bias"), dict(zip(("", "_bias"), paths.values(), strict=False))

    def _require_flattened_input(self, settings: Settings) -> None:
        if len(self.network.shape) != 1:
            raise settings.layer.error(f"reads {self.network.shape}, not features", "put a Flatten before it")
        if not self.network.found:
            self.network.treat_features_as_pixels(settings.layer)

    def read_convolution(self, settings: Settings) -> None:
        self._require_spatial_input(settings)
        network, layer = self.network, settings.layer
        size, stride = settings.take_equal_pair("kernel_size"), settings.take_equal_pair("strides", 1)
        maps = settings.take_count("filters")
        settings.take_choice("groups", 1)
        if settings.take_equal_pair("dilation_rate", 1) != 1:
            raise layer.error("has a dilation_rate", "only 1 can be imported")
        kernel, bias, origins = self._kernel_and_bias(settings, (size, size, network.shape[2], maps))
        same = settings.take_padding(self._padded_shape, size, stride)
        padding = before, behind = same[0] + self.zeros[0], same[1] + self.zeros[1]
        self.zeros = NO_ZEROS
        network.steps.append(computed.convolution_step(kernel, bias, stride, padding))
        if any(padding) and network.pending is not None and network.pending[1].any():
            network.add_pending_scale_as_layer(layer)  # folded into the convolution, the offset would miss the padding
        arrays = network.fold_pending_scale_into(kernel, bias)
        if before != behind:
            more = max(behind - before, 0), max(before - behind, 0)
            arrays[""] = np.pad(arrays[""], (more, more, (0, 0), (0, 0)))
            network.notes.append(f"{layer.name} pads one side more: its filters get rows and columns of zeros")
        network.add_layer(Conv2d("", maps, len(arrays[""]), stride, max(padding)), arrays, origins)
        self.read_activation(settings)

    def read_dense(self, settings: Settings) -> None:
        self._require_flattened_input(settings)
        units = settings.take_count("units")
        kernel, bias, origins = self._kernel_and_bias(settings, (*self.network.shape, units))
        self.network.steps.append(computed.dense_step(kernel, bias))
        self.network.add_layer(Linear("", units), self.network.fold_pending_scale_into(kernel, bias), origins)
        self.read_activation(settings)

    def read_activation(self, settings: Settings) -> None:
        """Add the activation in the setting ``activation``, which is a name or the configuration of a layer."""
        name = settings.take_setting("activation", "linear")
        if isinstance(name, dict):
            kind, inside = name.get("class_name"), name.get("config")
            if kind in ("LeakyReLU", "ReLU", "Softmax") and isinstance(inside, dict):
                self.read_layer(replace(settings.layer, kind=kind, settings=inside))
                return
            name = inside if isinstance(inside, str) else kind
        if name == "leaky_relu":
            self._add_leaky_relu(settings.layer, 0.2)  # Keras' default for the name
        elif name == "log_softmax":
            self.skip_log_softmax(settings.layer)
        elif name != "linear":
            self._add_activation(settings.layer, name)

    def read_rescaling(self, settings: Settings) -> None:
        network, channels = self.network, self.network.shape[-1] if len(self.network.shape) == 3 else 1
        factor, offset = settings.take_numbers("scale", 1, channels), settings.take_numbers("offset", 0, channels)
        network.steps.append(lambda x: x * factor + offset)
        if network.found or network.pending is not None or network.pixel_scale is not None:
            network.defer_scale(factor, offset)
            return
        shared = not factor.ndim and LEAST_SCALE <= factor <= MOST_SCALE
        exact = shared and np.float32(factor) == np.float32(PIXEL_SCALE)
        network.pixel_scale = PIXEL_SCALE if exact else float(factor) if shared else 1.0
        network.defer_scale(np.ones_like(factor) if shared else factor, offset)
        network.notes.append(f"{settings.layer.name} (Rescaling) is the scale of pixels, and part of the next layer")

    def read_prelu(self, settings: Settings) -> None:
        settings.take_setting("shared_axes")
        slopes = self._layer_arrays(settings.layer, ("alpha",))[0]["alpha"].ravel()
        if not slopes.size or (slopes != slopes[0]).any():
            raise settings.layer.error("has slopes that differ", "only one from 0 to 1 can be imported")
        self._add_leaky_relu(settings.layer, float(slopes[0]))

    def read_normalization(self, settings: Settings) -> None:
        network, layer, channels = self.network, settings.layer, self.network.shape[-1]
        grey = len(network.shape) == 2
        settings.take_choice("axis", None, -1, len(network.shape), [-1], [len(network.shape)], [])
        settings.take_choice("invert", False)
        if None in (layer.settings.get("mean"), layer.settings.get("variance")):  # the arrays have them, from adapt()
            roles = ("mean", "variance", "count")
            paths = self._find_paths(layer, roles, self._arrays)
            values = [as_float32(paths[role], self._arrays[paths[role]], network.notes) for role in roles[:2]]
            settings.take_setting("mean"), settings.take_setting("variance")
        else:
            values = [settings.take_numbers("mean", 0, channels), settings.take_numbers("variance", 1, channels)]
        if any(one.size not in (1, 1 if grey else channels) for one in values):
            raise layer.error(f"has not one mean and variance for each of {channels:,} channels", OTHERS)
        mean, variance = (one.astype(np.float64).ravel() for one in values)
        if not (variance >= 0).all() or not np.isfinite(mean).all():
            raise layer.error("has a mean or variance that is no number, or negative", DAMAGED)
        factor = 1 / np.maximum(np.sqrt(variance), 1e-7)
        network.steps.append(lambda x: (x - mean) * factor)
        first = not network.found and network.pending is None and network.pixel_scale is None
        if first and factor.max() < BRIGHT:
            network.pixel_scale = 1.0
            network.notes.append(
                f"{layer.name} (Normalization) divides by {1 / factor.max():.3g} and more: pixels to 255"
            )
        network.defer_scale(*(one[0] if one.size == 1 else one for one in (factor, -mean * factor)))
        network.notes.append(f"{layer.name} (Normalization) is part of the next layer")

    def read_batch_norm(self, settings: Settings) -> None:
        network, layer = self.network, settings.layer
        rank, count = len(network.shape), network.shape[-1]
        settings.take_choice("axis", -1, rank, [rank])
        if rank == 2:
            raise layer.error(f"reads {network.shape}", "put a Reshape before it")
        has = {role: settings.take_choice(key, True, False) for role, key in (("gamma", "scale"), ("beta", "center"))}
        roles = (*(role for role in has if has[role]), "moving_mean", "moving_variance")
        arrays, _ = self._layer_arrays(layer, roles)
        scale, shift = arrays.get("gamma", np.ones(count)), arrays.get("beta", np.zeros(count))
        mean, variance = arrays["moving_mean"], arrays["moving_variance"]
        epsilon = settings.take_numbers("epsilon", 1e-3, 1)
        norm = BatchNorm(format_for_error(layer.name), scale, shift, mean, variance, float(epsilon))
        factor, offset = fold_batch_norm(np.ones((1, count)), None, norm)
        network.steps.append(computed.batch_norm_step(norm))
        if network.found and (found := network.found[-1].arrays) and network.pending is None:
            found[""], found["_bias"] = fold_batch_norm(found[""], found.get("_bias"), norm)
            network.notes.append(f"{layer.name} (BatchNormalization) is folded into the layer before it")
            return
        network.defer_scale(factor[0].astype(np.float64), offset.astype(np.float64))
        network.notes.append(f"{layer.name} (BatchNormalization) is folded into the layer behind it")


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
    "Normalization": _LayerReader.read_normalization,
    "PReLU": _LayerReader.read_prelu,
    "ReLU": _LayerReader.read_relu,
    "Rescaling": _LayerReader.read_rescaling,
    "Reshape": _LayerReader.read_reshape,
    "Softmax": _LayerReader.read_softmax,
    "ZeroPadding2D": _LayerReader.read_zero_padding,
}
READ_PADDED = ("AveragePooling2D", "Conv2D", "MaxPooling2D", "ZeroPadding2D")
ONLY_IN_TRAINING = (  # and Identity, which never changes anything
    "Identity",
    *("ActivityRegularization", "AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout2D"),
    *("RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom", "RandomContrast", "RandomBrightness"),
)
