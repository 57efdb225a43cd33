"""Parse MXNet's files: lists of named arrays (.params), of both record versions, and symbols (the layers as JSON).

A list is little-endian, without alignment: uint64 0x112; uint64 0; uint64 n; n records; uint64 n; n names, each a
uint64 length and its bytes. A record: uint32 0xF993FAC9 and int32 storage type (0 dense), or uint32 0xF993FAC8 alone;
uint32 ndim; int64 x ndim shape; int32 device type and int32 device id, which are ignored; int32 number type; the
numbers, row-major. Names begin with arg: or aux:, in any order.

A symbol is a JSON list of nodes, in which every layer comes after its inputs. Settings are strings in the object
"attrs", named "attr" in files of 2017. The operator New is a convolution that a university course added to MXNet.
"""

import re
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.files.checks import (
    BadValueError,
    format_for_error,
    list_check,
    mapping_check,
    object_check,
    text_check,
    whole_number_check,
)
from app.files.reading import read_json
from app.interchange.chain import Chain
from app.interchange.source import Cursor
from app.layers import ACTIVATIONS, AvgPool, Conv2d, Flatten, Layer, Linear, MaxPool, Softmax
from app.network.network import MAX_LAYERS, default_names

MAGIC = 0x112
VERSION_1, VERSION_2 = 0xF993FAC8, 0xF993FAC9
LEAST_RECORD = 24  # bytes: version 1, one dimension, one byte of content
MAX_DIMENSIONS = 32
MAX_NAME = 1000
STORAGE = {1: "row_sparse", 2: "csr"}
# MXNet's number of a type → NumPy's type. NumPy lacks the types of other numbers, such as 12, bfloat16.
TYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "?"}


def read_params(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a .params file by their stored names, such as ``arg:conv1_weight``. Raises BadValueError."""
    cursor = Cursor(content)
    magic, reserved = cursor.read_int("Q", "its head"), cursor.read_int("Q", "its head")
    if magic != MAGIC or reserved:
        if int.from_bytes(content[:8], "big") == MAGIC:
            raise BadValueError("is a big-endian list of MXNet's; save it again on a little-endian machine")
        raise BadValueError("does not begin as a list of MXNet's (0x112, 0); name a .params file of MXNet 0.11 to 1.9")
    count = cursor.read_int("Q", "the number of arrays")
    if not 0 < count <= cursor.bytes_left // LEAST_RECORD:
        raise BadValueError(f"declares {count:,} arrays, but {cursor.bytes_left:,} bytes follow; get a fresh copy")
    arrays = [_read_array_record(cursor, f"array {at + 1} of {count:,}") for at in range(count)]
    names = cursor.read_int("Q", "the number of names")
    if names != count:
        raise BadValueError(f"has {count:,} arrays but {names:,} names; save it from a dictionary of names")
    found: dict[str, np.ndarray] = {}
    for array in arrays:
        name = _read_array_name(cursor, f"name {len(found) + 1} of {count:,}")
        if name in found:
            raise BadValueError(f"names two arrays {format_for_error(name)}; get a fresh copy")
        found[name] = array
    cursor.check_end("its last name")
    return found


def _read_array_record(cursor: Cursor, what: str) -> np.ndarray:
    version = cursor.read_int("I", what)
    if version not in (VERSION_1, VERSION_2):
        known = f"{VERSION_1:#x} and {VERSION_2:#x} are known"
        raise BadValueError(f"has {what} in a record of version {version:#x}; {known}, save it with MXNet 0.11 to 1.9")
    storage = cursor.read_int("i", what) if version == VERSION_2 else 0
    if storage:
        kind = STORAGE.get(storage, f"of type {storage}")
        raise BadValueError(f"stores {what} sparsely ({kind}); convert it with tostype('default')")
    dimensions = cursor.read_int("I", what)
    if not 0 < dimensions <= MAX_DIMENSIONS:
        raise BadValueError(f"has {what} with {dimensions:,} dimensions; get a fresh copy")
    shape = tuple(cursor.read_int("q", what) for _ in range(dimensions))
    if min(shape) < 1:
        raise BadValueError(f"has {what} of shape {shape}; get a fresh copy")
    cursor.read_bytes(8, what)  # type and id of the device from which MXNet saved it
    number = cursor.read_int("i", what)
    if number not in TYPES:
        raise BadValueError(f"has {what} in numbers of type {number}; store it as float32 (type 0)")
    dtype = np.dtype(TYPES[number])
    content = cursor.read_bytes(prod(shape) * dtype.itemsize, f"{what}, {prod(shape):,} numbers")
    return np.frombuffer(content, dtype).reshape(shape)


def _read_array_name(cursor: Cursor, what: str) -> str:
    length = cursor.read_int("Q", what)
    if not 0 < length <= MAX_NAME:
        raise BadValueError(f"has {what} of {length:,} bytes; 1 to {MAX_NAME:,} are read, rename it")
    try:
        name = bytes(cursor.read_bytes(length, what)).decode("utf-8")
    except UnicodeDecodeError:
        raise BadValueError(f"has {what} that is not text in UTF-8; get a fresh copy") from None
    if not name.isprintable():
        raise BadValueError(f"has {what} with unprintable characters; rename it")
    return name


MAX_NODES = 1000
MOST = 10**6  # maps or units of a layer
ACT_TYPES = ("relu", "tanh", "sigmoid")
LONGEST = 10_000  # characters of a setting; a file may contain any settings
_INPUT = list_check(whole_number_check(0, MAX_NODES - 1), 2)  # node, output, version
_NODE = object_check(
    {
        "op": text_check(),
        "name": text_check(),
        "inputs": list_check(_INPUT),
        "attrs": mapping_check(text_check(LONGEST)),
        "attr": mapping_check(text_check(LONGEST)),
    },
    optional=("attrs", "attr"),
    others=True,
)
_SYMBOL = object_check(
    {"nodes": list_check(_NODE, 1), "heads": list_check(_INPUT, 1)}, optional=("heads",), others=True
)
REMEDY = "give the symbol file that belongs to the arrays, or describe the network with --network FILE.toml"

Settings = Mapping[str, str]
POOLINGS: dict[str, type[Layer]] = {"max": MaxPool, "avg": AvgPool}


def read_symbol(path: Path) -> Chain:
    """Return the layers of a symbol file and the names of their arrays. Raises UserError."""
    symbol = read_json(path, _SYMBOL, REMEDY)
    try:
        return _read_chain(symbol["nodes"], symbol.get("heads", [[len(symbol["nodes"]) - 1, 0]]))
    except BadValueError as error:
        raise UserError(f"{path}: {error}; {REMEDY}") from error


def _read_chain(nodes: list[dict[str, Any]], heads: list[list[int]]) -> Chain:
    if len(nodes) > MAX_NODES:
        raise BadValueError(f"has {len(nodes):,} nodes, more than the {MAX_NODES:,} that are read")
    unknown = dict.fromkeys(format_for_error(node["op"]) for node in nodes if node["op"] not in ("null", *OPERATORS))
    if unknown:
        raise BadValueError(f"has operators that import does not know: {', '.join(unknown)}")
    if len(heads) > 1 or heads[0][0] >= len(nodes):
        raise BadValueError(f"has {len(heads)} outputs where one is needed" if heads[1:] else "has no output node")
    built = _LayerList()
    for node in _order_nodes(nodes, heads[0][0]):
        others = [nodes[at]["name"] for at, *_ in node["inputs"][1:]]
        if any(nodes[at]["op"] != "null" for at, *_ in node["inputs"][1:]):
            raise BadValueError(
                f"node {format_for_error(node['name'])} has two layers as inputs; only layers in a row are read"
            )
        settings = {**node.get("attr", {}), **node.get("attrs", {})}
        try:
            OPERATORS[node["op"]](built, settings, others)
        except BadValueError as error:
            raise BadValueError(f"node {format_for_error(node['name'])} ({node['op']}): {error}") from None
    if any(isinstance(layer, Softmax) for layer in built.layers[:-1]):
        raise BadValueError("has layers behind a softmax")
    return Chain(tuple(built.layers), built.names)


def _order_nodes(nodes: list[dict[str, Any]], head: int) -> list[dict[str, Any]]:
    """Return the nodes in order from the image to node ``head``. Raises BadValueError unless they form one chain."""
    found = []
    at = head
    while nodes[at]["op"] != "null":
        found.append(nodes[at])
        first = nodes[at]["inputs"][0][0] if nodes[at]["inputs"] else at
        if any(other >= at for other, *_ in nodes[at]["inputs"]) or first == at:
            raise BadValueError(f"node {format_for_error(nodes[at]['name'])} does not come after its inputs")
        at = first
    if len(found) > MAX_LAYERS:
        raise BadValueError(f"has {len(found)} layers, more than the {MAX_LAYERS} that are read")
    if not found or len(found) < sum(node["op"] != "null" for node in nodes):
        raise BadValueError("has layers beside the row that leads to its output" if found else "has no layers")
    return found[::-1]


class _LayerList:
    """The layers read so far, with default names. names: array name in this program → name in the file."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.names: dict[str, str] = {}

    @property
    def is_flattened(self) -> bool:
        """Return whether the activations are already flattened."""
        return any(isinstance(layer, Flatten) for layer in self.layers)

    def add_layer(self, kind: type[Layer], *values: Any) -> str:
        """Add a layer with a default name and return the name. values: the layer's fields after its name."""
        name = default_names([*(layer.kind for layer in self.layers), kind.kind])[-1]
        self.layers.append(kind(name, *values))
        return name

    def add_weighted_layer(self, kind: type[Layer], values: list[Any], settings: Settings, arrays: list[str]) -> None:
        """Add a layer, with a bias unless ``no_bias`` is set. values: fields after its name. arrays: their names."""
        bias = settings.get("no_bias", "False") not in ("True", "true", "1")
        if len(arrays) != 1 + bias:
            needed = "weights and a bias" if bias else "weights alone"
            raise BadValueError(f"has {len(arrays)} arrays as inputs, but needs {needed}")
        name = self.add_layer(kind, *values, bias)
        self.names |= dict(zip((name, f"{name}_bias"), arrays, strict=False))

    def add_convolution(self, settings: Settings, arrays: list[str]) -> None:
        if self.is_flattened:
            raise BadValueError("comes after flattened features")
        _require_defaults(settings, {"num_group": "1", "layout": "NCHW", "dilate": "(1, 1)"})
        sizes = [
            _parse_square_pair(settings, key, least) for key, least in (("kernel", None), ("stride", 1), ("pad", 0))
        ]
        self.add_weighted_layer(Conv2d, [_parse_count(settings, "num_filter"), *sizes], settings, arrays)

    def add_convolution_with_implied_bias(self, settings: Settings, arrays: list[str]) -> None:
        """Add a convolution (operator ``New``). If ``no_bias`` is not given, two arrays mean that it has a bias."""
        self.add_convolution({"no_bias": str(len(arrays) < 2), **settings}, arrays)

    def add_fully_connected(self, settings: Settings, arrays: list[str]) -> None:
        if not self.is_flattened:
            _require_defaults(settings, {"flatten": "True"})
            self.add_flatten({}, [])
        self.add_weighted_layer(Linear, [_parse_count(settings, "num_hidden")], settings, arrays)

    def add_activation(self, settings: Settings, arrays: list[str]) -> None:
        kind = settings.get("act_type", "")
        if kind not in ACT_TYPES:
            raise BadValueError(f"act_type {format_for_error(kind)} is none of {', '.join(ACT_TYPES)}")
        self.add_layer(ACTIVATIONS[kind])

    def add_pooling(self, settings: Settings, arrays: list[str]) -> None:
        _require_defaults(settings, {"global_pool": "False", "pad": "(0, 0)", "count_include_pad": "True"})
        kind, convention = settings.get("pool_type", "max"), settings.get("pooling_convention", "valid")
        if kind not in POOLINGS or convention not in ("valid", "full"):
            found = f"{format_for_error(kind)} pooling, {format_for_error(convention)}"
            raise BadValueError(f"{found}: max and avg are read, valid and full")
        window, stride = _parse_square_pair(settings, "kernel"), _parse_square_pair(settings, "stride", 1)
        self.add_layer(POOLINGS[kind], window, None if stride == window else stride, convention == "full")

    def add_flatten(self, settings: Settings, arrays: list[str]) -> None:
        if not self.is_flattened:
            self.add_layer(Flatten)


OPERATORS: dict[str, Callable[[_LayerList, Settings, list[str]], object]] = {
    "Convolution": _LayerList.add_convolution,
    "New": _LayerList.add_convolution_with_implied_bias,
    "Activation": _LayerList.add_activation,
    "Pooling": _LayerList.add_pooling,
    "Flatten": _LayerList.add_flatten,
    "FullyConnected": _LayerList.add_fully_connected,
    "SoftmaxOutput": lambda built, *_: built.add_layer(Softmax),
    "softmax": lambda built, *_: built.add_layer(Softmax),
}


def _require_defaults(settings: Settings, values: Settings) -> None:
    """Raise BadValueError unless each setting has its only supported value. values: setting → that value."""
    for key, value in values.items():
        found = settings.get(key, value)
        if found.replace(" ", "").lower() not in (value.replace(" ", "").lower(), "none", "()"):
            raise BadValueError(f"{key} {format_for_error(found)}: only {value} is computed here")


def _parse_count(settings: Settings, key: str) -> int:
    found = settings.get(key, "")
    if not re.fullmatch(r"[1-9]\d{0,6}", found) or int(found) > MOST:
        raise BadValueError(f"{key} {format_for_error(found)} is not a whole number from 1 to {MOST:,}")
    return int(found)


def _parse_square_pair(settings: Settings, key: str, otherwise: int | None = None) -> int:
    """Return the number in a setting of two equal numbers such as "(5, 5)". otherwise: result without the setting."""
    found = settings.get(key, "()")
    if found == "()" and otherwise is not None:
        return otherwise
    digits = re.fullmatch(r"[(\[]\s*(\d{1,5})L?\s*,\s*(\d{1,5})L?\s*,?\s*[)\]]", found)
    if digits is None or digits[1] != digits[2]:
        raise BadValueError(f"{key} {format_for_error(found)} is not two equal numbers like (5, 5)")
    return int(digits[1])
