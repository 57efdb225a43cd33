"""Recognise weights files of other systems, and name the command that imports them."""

import os
from pathlib import Path
from shlex import quote

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.files.reading import START_BYTES, recognise_file_kind

DESCRIPTION = "lenet5-inference"  # name of the entry beside exported arrays that describes the network


class ForeignFormat(Frozen):
    """A format of other systems' weights files, which ``import`` converts.

    module: name of the module in app/interchange that reads it. ending: suffix of file names. kind: what
    ``recognise_file_kind`` calls the content; "" if the content does not show it. network: the network that the
    suggested command names as an example; "" if the file shows its network.
    """

    name: str
    module: str
    ending: str
    kind: str = ""
    network: str = ""


FORMATS = (
    ForeignFormat("mini-dnn flat dump", "minidnn", ".bin", network="minidnn86"),
    ForeignFormat("safetensors", "safetensors_file", ".safetensors", "a safetensors file", "lenet5"),
    ForeignFormat("NumPy archive", "npz", ".npz", "a NumPy archive (.npz)", "lenet5"),
    ForeignFormat("ONNX model", "onnx_import", ".onnx", "an ONNX model"),
    ForeignFormat("PyTorch state dict", "state_dict", ".pt", "a PyTorch file (.pt, .pth)", "lenet5"),
    ForeignFormat("Keras model", "keras.file", ".keras", "a Keras model"),
    ForeignFormat("Keras HDF5 model", "keras.file", ".h5", "an HDF5 file"),
    ForeignFormat("MXNet arrays", "mxnet", ".params", "a list of MXNet's arrays"),
)


def refuse_foreign_file(path: Path, content: bytes) -> None:
    """Raise UserError with a remedy if the content of ``path``, which is not HDF5, has a known other format."""
    kind = recognise_file_kind(content[:START_BYTES])
    shown = (kind, "") if kind else ("", path.suffix.lower())  # the suffix decides only if the content does not
    found = next((row for row in FORMATS if shown == (row.kind, "" if row.kind else row.ending)), None)
    if found is not None:
        told = "" if DESCRIPTION.encode() in content else found.network
        remedy = f"make weights of it: {_import_command(path, told)}"
    elif kind is not None:
        remedy = "store its arrays as conv1, fc1 and so on (docs/networks.md)"
    else:
        return
    raise UserError(f"{path} is {kind or 'of another format'}, not HDF5 weights; {remedy}")


def hdf5_groups_remedy(path: Path) -> str:
    """Return a hint on how to import an HDF5 file that contains groups, as Keras writes them."""
    return f"if it is a Keras model, make weights of it: {_import_command(path, '')}"


def _import_command(path: Path, network: str) -> str:
    """Return the command that imports the file as new weights. network: example to name with ``--network``, or ""."""
    out = f"{path.stem}.h5"
    if os.path.lexists(out):
        out = f"{path.stem}_imported.h5"
    named = f" --network {network}" if network else ""
    command = f"python main.py import {quote(str(path))}{named} --out {quote(out)}"
    return f"{command} (or the name or .toml file of its own network)" if network else command
