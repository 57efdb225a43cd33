"""Read the configuration of a Keras model: its layers in order, also those of nested models, and their settings."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from app.base.frozen import Frozen
from app.files.checks import BadValueError, format_for_error, number_check
from app.network.network import MAX_NUMBER, MAX_SIDE

MAX_LAYERS = 1000  # of a model in the file, including layers that only training uses
MAX_DEPTH = 8  # of nested models
MODELS = ("Sequential", "Functional", "Model")
CHAIN = "only layers in a row can be imported"
NOT_RUN = "its own code was not run: build the model of Keras' layers"
DAMAGED = "get a fresh copy"


class KerasLayer(Frozen):
    """A layer of a Keras model. kind: its class. settings: its configuration, not checked yet.

    place: path of its group in a ``.keras`` file. outermost: name of the outermost model that contains it, or its own.
    """

    name: str
    kind: str
    settings: Mapping[str, Any]
    place: str
    outermost: str

    def error(self, what: str, remedy: str) -> BadValueError:
        """Return an error that names this layer. what: what is wrong with it, beginning with a verb."""
        named = f"layer {format_for_error(self.name)} ({format_for_error(self.kind)[1:-1]})"
        return BadValueError(f"{named} {what}; {remedy}")


class KerasModel(Frozen):
    """The layers of a model in order, and the shape of the model's input without the batch dimension."""

    layers: tuple[KerasLayer, ...]
    input_shape: tuple[int, ...]


def read_model(config: Any, size: int | None) -> KerasModel:
    """Return a model from its parsed JSON. size: of its images, if the model accepts any size. Raises BadValueError."""
    model = _read_layer(config, "", "", {})
    _check_is_keras(config, model)
    if model.kind not in MODELS or not isinstance(model.settings.get("layers"), list):
        kind = f"a model of the class {format_for_error(model.kind)}"
        raise BadValueError(f"is {kind}, whose code makes its layers; {NOT_RUN}, Sequential or functional")
    layers = [*_iterate_layers(model, "", 0)]
    shapes = [
        found
        for settings in (*(layer.settings for layer in layers[:1]), model.settings)
        for key in ("batch_shape", "batch_input_shape", "build_input_shape")
        if (found := settings.get(key)) is not None
    ]
    kept = tuple(layer for layer in layers if layer.kind != "InputLayer")
    return KerasModel(kept, _input_shape(shapes[0] if shapes else None, size))


def _input_shape(batch_shape: Any, size: int | None) -> tuple[int, ...]:
    sides = batch_shape[1:] if isinstance(batch_shape, list) else []
    is_open = [at < 2 <= len(sides) and side is None for at, side in enumerate(sides)]
    if size is not None and not any(is_open):
        raise BadValueError("has the size of its images in it; leave --size out")
    if any(is_open) and size is None:
        raise BadValueError("leaves the size of its images open; give --size")
    known = [size if missing else side for side, missing in zip(sides, is_open, strict=True)]
    shape = tuple(side for side in known if type(side) is int and side > 0)
    if not 1 <= len(shape) <= 3 or len(shape) < len(known):
        raise BadValueError("does not say the shape of its images; build it with an Input, and save it again")
    if len(shape) > 1 and (max(shape[:2]) > MAX_SIDE or shape[2:] not in ((), (1,), (3,))):
        raise BadValueError(f"reads images {shape}; up to {MAX_SIDE:,} rows and columns of 1 or 3 channels can be")
    return shape


def _read_layer(entry: Any, within: str, outermost: str, counts: dict[str, int]) -> KerasLayer:
    """Return the layer in a JSON entry of a model. counts: name of a group → earlier layers in it. within: path."""
    if not isinstance(entry, dict) or not isinstance(entry.get("class_name"), str):
        raise BadValueError(f"has a layer without a class; {DAMAGED}")
    settings = entry.get("config")
    if not isinstance(settings, dict):
        raise BadValueError(f"has a {format_for_error(entry['class_name'])} without settings; {DAMAGED}")
    name = settings.get("name", "model")  # subclassed models have no name
    if not isinstance(name, str) or not name or not name.isprintable() or "/" in name:
        raise BadValueError(f"has a layer of the name {format_for_error(name)}; rename it")
    group = _snake_case(entry["class_name"])
    counts[group] = counts.get(group, -1) + 1
    number = f"_{counts[group]}" if counts[group] else ""
    return KerasLayer(name, entry["class_name"], settings, f"{within}layers/{group}{number}", outermost or name)


def _snake_case(name: str) -> str:
    """Return the name that Keras derives from a class for its layers' groups: ``Conv2D`` → ``conv2d``."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _check_is_keras(entry: Mapping[str, Any], layer: KerasLayer) -> None:
    """Raise BadValueError unless the layer's class belongs to Keras; a custom class may have the same name."""
    module, registered = entry.get("module", "keras"), entry.get("registered_name")  # .h5 files name no modules
    known = isinstance(module, str) and module.partition(".")[0] in ("keras", "tf_keras", "tensorflow")
    if not known or registered not in (None, layer.kind) or ">" in layer.kind:
        raise layer.error("is a custom object", NOT_RUN)


def _iterate_layers(model: KerasLayer, within: str, depth: int, outermost: str = "") -> Iterator[KerasLayer]:
    """Yield the layers of a model in the order of computation. within: path of its group. depth: models around it."""
    entries = model.settings.get("layers")
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_LAYERS or depth > MAX_DEPTH:
        raise model.error(f"has no layers, or more than {MAX_LAYERS:,} or {MAX_DEPTH} models in models", DAMAGED)
    counts: dict[str, int] = {}
    layers = [_read_layer(entry, within, outermost, counts) for entry in entries]
    for entry, layer in zip(entries, layers, strict=True):
        _check_is_keras(entry, layer)
    order = range(len(layers)) if model.kind == "Sequential" else _computation_order(model, entries, layers)
    for at in order:
        layer = layers[at]
        if layer.kind in MODELS:
            inside = _iterate_layers(layer, f"{layer.place}/", depth + 1, layer.outermost)
            yield from (one for one in inside if one.kind != "InputLayer")
        else:
            yield layer


def _computation_order(model: KerasLayer, entries: list[dict[str, Any]], layers: list[KerasLayer]) -> list[int]:
    """Return the indices of ``layers`` in the order of computation. entries: their JSON. Raises BadValueError."""
    behind: dict[str | None, int] = {}
    for at, (entry, layer) in enumerate(zip(entries, layers, strict=True)):
        before = _input_layer_name(entry, layer)
        if before in behind:
            other = format_for_error(layers[behind[before]].name)
            raise layer.error(f"reads what {other} reads" if before else f"is an input beside {other}", CHAIN)
        behind[before] = at
    order: list[int] = []
    name: str | None = None
    while name in behind and len(order) < len(layers):
        order.append(behind[name])
        name = layers[order[-1]].name
    outputs = _parse_tensor_reference(model.settings.get("output_layers"))
    if len(order) < len(layers) or outputs[:1] != [name] or len(outputs) > 3:
        raise model.error("has layers that do not lead to one output", CHAIN)
    return order


def _parse_tensor_reference(value: Any) -> list[Any]:
    """Return a reference to a tensor as [name, node, tensor], without a list around it; [] for anything but a list."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [part for one in value for part in (one if isinstance(one, list) else [one])]
    return value if isinstance(value, list) else []


def _input_layer_name(entry: Mapping[str, Any], layer: KerasLayer) -> str | None:
    """Return the name of the layer whose output this layer reads; None for an input. Raises BadValueError."""
    nodes = entry.get("inbound_nodes")
    if not isinstance(nodes, list) or len(nodes) != (layer.kind != "InputLayer"):
        raise layer.error("is not used once", CHAIN)
    if not nodes:
        return None
    node = nodes[0]
    if isinstance(node, dict):  # Keras 3
        tensors, options = node.get("args"), node.get("kwargs")
        found = [one.get("config") for one in tensors if isinstance(one, dict)] if isinstance(tensors, list) else []
        history = found[0].get("keras_history") if len(found) == 1 and isinstance(found[0], dict) else None
    else:
        history = node[0] if isinstance(node, list) and len(node) == 1 else None
        options = history[3] if isinstance(history, list) and len(history) == 4 else None
    if not isinstance(history, list) or not isinstance(history[0] if history else None, str):
        raise layer.error("does not read one layer", CHAIN)
    if options and (not isinstance(options, dict) or any(options.values())):
        raise layer.error("is called with options such as training=True", "call it without")
    return str(history[0])


# Settings that matter only when a layer is built or trained.
UNUSED = re.compile(
    r"name|trainable|(input_)?dtype|batch(_input)?_shape|\w+_(initializer|regularizer|constraint)|momentum|renorm\w*"
    r"|synchronized|virtual_batch_size|fused"
)
OTHERS = "export another network"


class Settings:
    """The settings of a layer. Each method removes the setting that it returns; then ``check_all_taken`` finds none."""

    def __init__(self, layer: KerasLayer) -> None:
        self.layer = layer
        self._left = {key: value for key, value in layer.settings.items() if not UNUSED.fullmatch(key)}

    def take_setting(self, key: str, default: Any = None) -> Any:
        """Remove and return a setting without checking it; return the default if it is missing or null."""
        found = self._left.pop(key, None)
        return default if found is None else found

    def take_choice(self, key: str, *allowed: Any) -> Any:
        """Return a setting that must have one of these values; the first one is the default. Raises BadValueError."""
        found = self.take_setting(key, allowed[0])
        if found not in allowed:
            known = " or ".join(map(str, allowed))
            raise self.layer.error(f"has {key} {format_for_error(found)}", f"only {known} can be imported")
        return found

    def take_count(self, key: str) -> int:
        """Return a setting that must be a positive whole number. Raises BadValueError."""
        return self._checked_count(key, self.take_setting(key))

    def take_equal_pair(self, key: str, default: int | None = None) -> int:
        """Return the positive number that a setting has for height and width: 3 or [3, 3]. Raises BadValueError."""
        found = self.take_setting(key, default)
        if isinstance(found, list):
            if len(found) != 2 or found[0] != found[1]:
                raise self.layer.error(f"has a {key} that differs in height and width", OTHERS)
            found = found[0]
        return self._checked_count(key, found)

    def _checked_count(self, key: str, found: Any) -> int:
        if type(found) is not int or not 1 <= found <= MAX_NUMBER:
            raise self.layer.error(f"has {key} {format_for_error(found)}", f"it must be from 1 to {MAX_NUMBER:,}")
        return found

    def take_numbers(self, key: str, default: float, channels: int) -> np.ndarray:
        """Return a setting as float64: () for a number, (channels,) for a list. Raises BadValueError unless finite."""
        found = self.take_setting(key, default)
        try:
            many = [number_check()(one) for one in (found if isinstance(found, list) else [found])]
        except BadValueError as error:
            raise self.layer.error(f"has a wrong {key}: {error}", OTHERS) from None
        if isinstance(found, list) and len(many) not in (1, channels):
            raise self.layer.error(f"has {len(many):,} numbers as {key} for {channels:,} channels", OTHERS)
        return np.array(many if len(many) > 1 else many[0], np.float64)

    def take_slope(self, default: float) -> float:
        """Return the slope for x < 0: ``negative_slope``, Keras 2's ``alpha``, or the default. Raises BadValueError."""
        found = [float(self.take_numbers(key, default, 1)) for key in ("negative_slope", "alpha")]
        return next((one for one in found if one != default), default)

    def take_padding(self, shape: tuple[int, ...], window: int, stride: int) -> tuple[int, int]:
        """Return the padding (before, after) of maps (H, W, C), equal for rows and columns. Raises BadValueError."""
        if self.take_choice("padding", "valid", "same") == "valid":
            return 0, 0
        totals = {max((-(-side // stride) - 1) * stride + window - side, 0) for side in shape[:2]}
        if len(totals) > 1:
            raise self.layer.error("pads rows and columns differently", "use padding valid")
        (total,) = totals
        return total // 2, total - total // 2

    def check_all_taken(self) -> None:
        """Raise BadValueError for a setting that no method has taken, unless its value is null or false."""
        left = [key for key, value in self._left.items() if value is not None and value is not False]
        if left:
            raise self.layer.error(f"has the setting {format_for_error(min(left))}", "this program does not know it")
