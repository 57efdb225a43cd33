"""Layers as TOML tables: kinds, keys and default names; and the text of a network."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from app import layers
from app.layers import Argmax, Layer, Shape

# Type in the file → class: every layer but the argmax, which ends each network and is not written.
KINDS: dict[str, type[Layer]] = {
    layer.kind: layer
    for layer in (getattr(layers, name) for name in layers.__all__)
    if hasattr(layer, "kind") and layer is not Argmax
}
_SHORT = {"conv2d": "conv", "avgpool": "pool", "maxpool": "pool", "linear": "fc"}
_SINGLE = ("flatten", "resize", "softmax")  # a network has one of each: without a number


def default_names(kinds: Iterable[str]) -> list[str]:
    """Return the names of layers of these kinds that were given none: ``conv1``, ``relu1``, ``pool1``, ``flatten``."""
    counts: dict[str, int] = {}
    names = []
    for kind in kinds:
        short = _SHORT.get(kind, kind)
        counts[short] = counts.get(short, 0) + 1
        names.append(short if kind in _SINGLE else f"{short}{counts[short]}")
    return names


def defaults_of(layer: Layer | type[Layer]) -> dict[str, Any]:
    """Return the layer's keys, the fields of its class but the name, with their defaults; MISSING without one."""
    return {one.name: one.default for one in fields(layer) if one.name != "name"}


def settings_of(layer: Layer) -> dict[str, Any]:
    """Return the layer's settings by key, without those at their default, in the order of its fields."""
    return {key: getattr(layer, key) for key, default in defaults_of(layer).items() if getattr(layer, key) != default}


def computation_toml(input_shape: Shape, pixel_scale: float, default_scale: float, layers: Iterable[Layer]) -> str:
    """Return the canonical text of a network without name and summary, for files and digests.

    Settings at their default are left out, so that a setting that layers get later changes no text from before.
    """
    head: dict[str, Any] = {"input": list(input_shape)}
    if pixel_scale != default_scale:
        head["pixel_scale"] = float(pixel_scale)
    tables = [
        {"type": layer.kind, "name": layer.name, **settings_of(layer)}
        for layer in layers
        if not isinstance(layer, Argmax)
    ]
    return assignments(head) + "".join(f"\n[[layers]]\n{assignments(table)}" for table in tables)


def assignments(values: Mapping[str, Any]) -> str:
    """Write ``key = value`` lines: whole numbers, floats, strings without control characters, booleans and lists."""
    # For these values, TOML's notation is that of JSON.
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
