"""Read, check and write a network's weights in HDF5, with the promised numbers of correct answers."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.files import checks, shipped
from app.files.checks import BadValueError, Check, list_check, mapping_check, number_check, parse_json, string
from app.files.hdf5 import MAX_ATTRIBUTE_BYTES, Attribute, ReadRequest, build_hdf5_bytes, content_hash, printable_line
from app.files.reading import HDF5, read_file
from app.files.writing import replace_atomically
from app.network.definitions import network_by_name
from app.network.network import LEAST_SCALE, MAX_BYTES, MOST_SCALE, Network
from app.network.quantised import QuantisedFilters, split_quantised
from app.network.toml import network_toml, parse_network

if TYPE_CHECKING:  # the main job starts without them
    from app.records import parts as records

DEFAULT_NETWORK = "lenet5"
ENDINGS = (".h5", ".hdf5")  # suffixes that tell a weights file from a network's name
STORAGES = ("float32", "float16")  # types that save_weights can write
SCHEMA = 3  # 1 had no checksum, 2 no definition of the network
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CHECKSUM = "arrays_sha256"


class Weights(Frozen):
    """A network's parameters, as float32 arrays, and the other facts in its file.

    arrays: "conv1" (K, K, in, out), "fc1" (in, out), "<name>_bias" (out,), and so on. network: the network's name.
    definition: the network; None in files that only name it. input_scale: factor for uint8 pixels before the first
    layer; None for the pixel scale of the network. expected_correct: number of first test images → promised number of
    correct answers; {} without a promise. storage: type in the file; ``float16`` only if every array has it, so that
    writing the file again loses nothing more. quantised: 8-bit filters of a convolution; None in files without.
    vouched: whether a checksum, in the file or in SHA256SUMS, confirms the content.
    """

    arrays: dict[str, np.ndarray]
    network: str
    path: Path
    classes: tuple[str, ...] | None = None
    input_scale: float | None = None
    recipe: str | None = None
    expected_correct: dict[int, int] = field(default_factory=dict)
    sha256: str = ""
    storage: str = "float32"
    vouched: bool = True
    definition: Network | None = None
    quantised: QuantisedFilters | None = None

    @property
    def json_record(self) -> "records.Weights":
        """Return the record that describes the file in JSON documents."""
        return {"path": str(self.path), "sha256": self.sha256, "vouched": self.vouched, "recipe": self.recipe}

    def stored_network(self) -> Network:
        """Return the network of the file: its definition, or else the listed network of its name. Raises UserError."""
        found = self.definition or network_by_name(self.network)
        if found is None:
            unknown = f"{self.path} names network '{printable_line(self.network)}', which is not listed"
            raise UserError(f"{unknown}, and does not define it: name the network's file with --network FILE.toml")
        return found

    def promised_correct_count(self, network: Network, images: int) -> int | None:
        """Return the promised number of correct answers among the first ``images`` test images; None without a promise.

        A promise holds only for the file's network, under any name: the arrays may fit other networks, too.
        """
        own = self.definition or network_by_name(self.network)
        return self.expected_correct.get(images) if own is not None and own.digest == network.digest else None


def load_weights(path: Path | None = None) -> Weights:
    """Return the checked weights of a file; None for the shipped file of ``lenet5``. Raises UserError for every fault.

    Datasets without attributes suffice: the network is then ``lenet5`` with its pixel scale, without promises. HDF5
    hardly detects damaged numbers, so ``save_weights`` adds a checksum; a checksum in the file must be right.
    """
    path = shipped.find_shipped_weights(DEFAULT_NETWORK) if path is None else path
    content = read_file(path, MAX_BYTES)
    pinned = shipped.is_shipped_weights(path)
    if pinned:
        shipped.check_shipped_hash(path, content)
    if not content.startswith(HDF5):
        from app.network import foreign

        foreign.refuse_foreign_file(path, content)
    return _parse_file(path, content, pinned)


def round_to_storage(arrays: Mapping[str, np.ndarray], storage: str) -> dict[str, np.ndarray]:
    """Return float32 arrays as if stored in type ``storage`` and read back."""
    return {name: _cast_to_storage_type(array, storage).astype(np.float32) for name, array in arrays.items()}


def _cast_to_storage_type(array: np.ndarray, storage: str) -> np.ndarray:
    with np.errstate(over="ignore"):  # infinite values are refused later
        return array.astype(storage)


def save_weights(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    *,
    network: Network,
    classes: Iterable[str] | None = None,
    input_scale: float | None = None,
    recipe: str | None = None,
    expected_correct: Mapping[int, int] | None = None,
    storage: str = "float32",
    quantised: QuantisedFilters | None = None,
    overwrite: bool = True,
) -> None:
    """Write a weights file atomically; equal arguments give equal bytes.

    input_scale: None for the network's pixel scale. storage: one of ``STORAGES``. Raises UserError, and writes nothing,
    for all that ``load_weights`` would refuse. Without ``overwrite``, an existing file is an error unless it contains
    exactly these bytes.
    """
    promise = sorted((expected_correct or {}).items())
    attributes: dict[str, str | int | float] = {
        "schema": SCHEMA,
        "network": network.name,
        "definition": network_toml(network),
        "input_scale": float(network.pixel_scale if input_scale is None else input_scale),
        "expected_correct": json.dumps({str(n): int(correct) for n, correct in promise}),
    }
    if classes is not None:
        attributes["classes"] = json.dumps(list(classes))
    if recipe is not None:
        attributes["recipe"] = recipe
    stored = {name: _cast_to_storage_type(array, storage) for name, array in arrays.items()}
    if quantised is not None:
        stored |= quantised.arrays
    content = build_hdf5_bytes(stored, {**attributes, _CHECKSUM: _content_checksum(stored, attributes)})
    _parse_file(path, content, pinned=True)  # trusted, as this process has made it
    if not overwrite and path.is_file() and read_file(path, MAX_BYTES) == content:
        return
    with replace_atomically(path, overwrite=overwrite) as temporary:
        temporary.write_bytes(content)


def check_shapes(weights: Weights, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UserError, naming every dataset that is missing, unexpected or not of its ``expected`` shape."""
    needs = f"network {weights.network} needs"
    faults = []
    for name in sorted(expected.keys() | weights.arrays.keys()):
        if name not in expected:
            faults.append(f"{name} is not part of network {weights.network}")
        elif name not in weights.arrays or weights.arrays[name].shape != expected[name]:
            found = _format_shape(weights.arrays[name].shape) if name in weights.arrays else "missing"
            faults.append(f"{name} is {found}, {needs} {_format_shape(expected[name])}")
    if faults:
        raise UserError(f"{weights.path}: {'; '.join(faults)}; use weights made for this network")


def _format_shape(shape: tuple[int, ...]) -> str:
    return f"({','.join(map(str, shape))})"


def _content_checksum(arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Attribute]) -> str:
    """Return a hash of the arrays, in their stored type, and of the attributes that this program reads."""
    about = {name: attributes[name] for name in _ATTRIBUTE_CHECKS if name in attributes}
    return content_hash(arrays, json.dumps(about, sort_keys=True))


def _parse_file(path: Path, content: bytes, pinned: bool) -> Weights:
    read = shipped.read_verified_hdf5
    if not pinned:
        from app.files.hdf5_process import read_untrusted as read
    found = read(path, content, ReadRequest(None, ("kind", _CHECKSUM, *_ATTRIBUTE_CHECKS), MAX_BYTES))
    attributes = found.attributes
    try:
        summed = attributes.get("schema") in (2, SCHEMA) or _CHECKSUM in attributes
        if summed and attributes.get(_CHECKSUM) != _content_checksum(found.arrays, attributes):
            changed = f"or, if it was changed on purpose, remove attributes 'schema' and {_CHECKSUM!r}"
            raise BadValueError(f"its content does not match its checksum; get a fresh copy, {changed}")
        weights, quantised = split_quantised(found.arrays)
        _check_arrays(path, weights)
        arrays = {name: _as_float32(name, array) for name, array in weights.items()}
        if "kind" in attributes:
            raise BadValueError("it is a training's checkpoint, not weights; train --resume makes weights of it")
        stated = {name: _check_attribute(name, attributes[name]) for name in _ATTRIBUTE_CHECKS if name in attributes}
        if "definition" in stated:
            stated |= _network_fields(path, stated)
    except BadValueError as error:
        raise UserError(f"{path}: {error}") from error
    stated.pop("schema", None)
    return Weights(
        arrays=arrays,
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        storage="float16" if all(array.dtype == np.float16 for array in weights.values()) else "float32",
        vouched=pinned or _CHECKSUM in attributes,
        quantised=quantised,
        **{"network": DEFAULT_NETWORK, **stated},
    )


def _network_fields(path: Path, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``Weights`` that the file's attributes state. Raises UserError and BadValueError."""
    definition = parse_network(stated["definition"], f"{path}, attribute 'definition'")
    if stated.get("network", definition.name) != definition.name:
        names = f"attribute 'network' is {stated['network']}, but 'definition' defines {definition.name}"
        raise BadValueError(f"{names}; correct one of them")
    return {"definition": definition, "network": definition.name}


def _check_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    if not arrays:
        from app.network import foreign

        raise BadValueError(f"has no datasets in its root; {foreign.hdf5_groups_remedy(path)}")
    for name, array in arrays.items():
        if not _NAME.fullmatch(name):
            shown = printable_line(repr(name))
            raise BadValueError(f"dataset {shown} is not named like fc1 or fc1_bias; rename or remove it")
        _check_numbers(name, array)
    for name in arrays:
        layer = name.removesuffix("_bias")
        if layer not in arrays or (layer != name and arrays[name].shape != arrays[layer].shape[-1:]):
            why = "which is missing or has another number of outputs"
            raise BadValueError(f"{name} does not go with {layer}, {why}; add it")


def _check_numbers(name: str, array: np.ndarray) -> None:
    if array.ndim not in ((1,) if name.endswith("_bias") else (2, 4)) or array.size == 0:
        kinds = "filters (K,K,in,out), matrices (in,out) and biases <layer>_bias (out,)"
        raise BadValueError(f"{name} is {_format_shape(array.shape)}; store only {kinds}, none of them empty")
    if array.dtype.kind != "f":
        raise BadValueError(f"{name} contains {array.dtype} numbers; store them as float32")
    bad = array.size - int(np.isfinite(array).sum())
    if bad:
        raise BadValueError(f"{name} contains {bad:,} NaN or infinite values; train the network again")


def _as_float32(name: str, array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise BadValueError(f"{name} contains values beyond the range of float32; scale the weights down")
    return narrow


def _check_network_name(value: Any) -> str:
    if not _NAME.fullmatch(_text(value)):
        raise BadValueError("no name")
    return value


def _json_text_check(check: Check) -> Check:
    return lambda value: check(parse_json(_text(value)))


def _parse_promised_counts(value: Any) -> dict[int, int]:
    promise = mapping_check(checks.whole_number_check(0, 10**9))(value)
    if not all(re.fullmatch("[1-9][0-9]{0,8}", images) and right <= int(images) for images, right in promise.items()):
        raise BadValueError("no promise")
    return {int(images): right for images, right in promise.items()}


_text = checks.text_check(MAX_ATTRIBUTE_BYTES)
# Attributes in the checksum, most of them fields of Weights → the requirement, in words and as a check.
_ATTRIBUTE_CHECKS: dict[str, tuple[str, Check]] = {
    "schema": (f"a version that this program reads, 1 to {SCHEMA}", checks.whole_number_check(1, SCHEMA)),
    "network": ("the name of a network", _check_network_name),
    "definition": ("the text of a network's TOML file", string),
    "classes": ("a JSON list of names", _json_text_check(lambda value: tuple(list_check(_text, 1)(value)))),
    "input_scale": (f"a number from {LEAST_SCALE:.2g} to {MOST_SCALE:.2g}", number_check(LEAST_SCALE, MOST_SCALE)),
    "recipe": ("one line of text", _text),
    "expected_correct": (
        "a JSON object of image counts and correct answers among them",
        _json_text_check(_parse_promised_counts),
    ),
}


def _check_attribute(name: str, value: Attribute) -> Any:
    needed, check = _ATTRIBUTE_CHECKS[name]
    try:
        return check(value)
    except BadValueError as error:
        raise BadValueError(f"attribute {name!r} is not {needed}; correct or remove it") from error
