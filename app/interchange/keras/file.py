"""Read Keras files, ``.keras`` (a zip archive of JSON and HDF5) and HDF5; no code in them is executed."""

import stat
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.files.checks import BadValueError, format_for_error, parse_json
from app.files.hdf5 import Attribute, ReadRequest
from app.files.hdf5_process import read_untrusted
from app.interchange.keras.chain import KerasLayer, read_model
from app.interchange.keras.layers import read_layers
from app.interchange.npz import COMPRESSIONS, open_zip, unpack_member
from app.interchange.source import MAX_FILE_BYTES, ImportOptions, Source

MAX_CONFIG_BYTES = 4 << 20
CONFIG, WEIGHTS, ZIPPED_GROUP, GROUP = "config.json", "model.weights.h5", "layers", "model_weights"
WHOLE = "save the whole model with model.save('model.keras')"

Arrays = Mapping[str, np.ndarray]


def read_source(content: bytes, options: ImportOptions) -> Source:
    """Return the network that a Keras model's configuration defines, and its arrays. Raises BadValueError."""
    if options.network is not None or options.symbol is not None:
        raise BadValueError("is a Keras model, which contains its network; leave --network and --symbol out")
    zipped = content.startswith(b"PK")
    config, arrays = _read_zip(content) if zipped else _read_hdf5(content)
    model = read_model(_parse_config(config), options.size)
    with np.errstate(all="ignore"):  # NaN and infinite values are reported with the network's arrays
        network = read_layers(model, arrays, _array_paths_in_zip if zipped else _array_paths_in_hdf5)
        return network.to_source(options.name)


def _read_zip(content: bytes) -> tuple[str, Arrays]:
    with open_zip(content, MAX_FILE_BYTES) as archive:
        members = archive.infolist()
        for at, member in enumerate(members):
            _check_member(member, {one.filename for one in members[:at]})
        found = {member.filename: member for member in members}
        if missing := sorted({CONFIG, WEIGHTS} - found.keys()):
            raise BadValueError(f"has no {missing[0]}, so is no Keras model; {WHOLE}")
        if found[CONFIG].file_size > MAX_CONFIG_BYTES:
            raise BadValueError(f"has a {CONFIG} of {found[CONFIG].file_size:,} bytes; {MAX_CONFIG_BYTES:,} are read")
        try:
            config = str(unpack_member(archive, found[CONFIG]), "utf-8")
        except UnicodeDecodeError:
            raise BadValueError(f"has a {CONFIG} that is no UTF-8; get a fresh copy") from None
        weights = bytes(unpack_member(archive, found[WEIGHTS]))
    return config, _read_group(WEIGHTS, weights, ZIPPED_GROUP)[1]


def _check_member(member: zipfile.ZipInfo, before: set[str]) -> None:
    """Raise BadValueError for a member that Keras would not have written. before: names of the earlier members."""
    name = member.filename
    faults = {
        "lies outside the archive": name.startswith("/") or ".." in name.split("/") or "\\" in name or ":" in name,
        "stands there twice": name in before,
        "is encrypted": bool(member.flag_bits & 1),
        "is a link": stat.S_ISLNK(member.external_attr >> 16),
        "is packed in a way that Keras does not write": member.compress_type not in COMPRESSIONS,
    }
    for fault, holds in faults.items():
        if holds:
            raise BadValueError(f"contains {format_for_error(name)}, which {fault}; {WHOLE}")


def _read_hdf5(content: bytes) -> tuple[str, Arrays]:
    attributes, arrays = _read_group("its content", content, GROUP)
    config = attributes.get("model_config")
    if "network" in attributes:  # as in this program's files
        raise BadValueError("is a weights file already; name it with --weights")
    if not isinstance(config, str):
        raise BadValueError(f"has no model_config, so is no Keras model with its network; {WHOLE}")
    return config, arrays


def _read_group(name: str, content: bytes, group: str) -> tuple[Mapping[str, Attribute], Arrays]:
    wanted = ReadRequest(None, ("model_config", "network") if group == GROUP else (), MAX_FILE_BYTES, group=group)
    try:
        found = read_untrusted(Path(name), content, wanted)
    except UserError as error:
        raise BadValueError(str(error)) from None
    return found.attributes, found.arrays


def _parse_config(text: str) -> Any:
    try:
        return parse_json(text)
    except BadValueError as error:
        raise BadValueError(f"has a wrong configuration: {error}; get a fresh copy") from None


def _array_paths_in_zip(layer: KerasLayer, roles: Sequence[str], arrays: Iterable[str]) -> dict[str, str]:
    """Return role, such as ``kernel``, → path of the layer's array in a ``.keras`` file: ``PLACE/vars/0`` and so on."""
    start = f"{layer.place}/vars/"
    return _paths_by_role(layer, roles, {path.removeprefix(start): path for path in arrays if path.startswith(start)})


def _array_paths_in_hdf5(layer: KerasLayer, roles: Sequence[str], arrays: Iterable[str]) -> dict[str, str]:
    """Return role → path of the layer's array in an HDF5 file, which ends in the role: ``kernel`` or ``kernel:0``."""
    start = f"{GROUP}/{layer.outermost}/"
    inside = [path for path in arrays if path.startswith(start)]
    if layer.outermost != layer.name:
        inside = [path for path in inside if path.split("/")[-2] == layer.name]
    named = {path.rpartition("/")[2].partition(":")[0]: path for path in inside}
    numbered = {str(at): named.pop(role) for at, role in enumerate(roles) if role in named}
    return _paths_by_role(layer, roles, {**named, **numbered} if len(named) + len(numbered) == len(inside) else {})


def _paths_by_role(layer: KerasLayer, roles: Sequence[str], numbered: Mapping[str, str]) -> dict[str, str]:
    if numbered.keys() != {str(at) for at in range(len(roles))}:
        raise layer.error(f"has {len(numbered)} arrays, not {' and '.join(roles)}", "get a fresh copy")
    return {role: numbered[str(at)] for at, role in enumerate(roles)}
