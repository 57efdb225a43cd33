"""Files of other systems that are given as weights: what they are, and the command that makes weights of them."""

import os
from pathlib import Path
from shlex import quote

from app.errors import UserError
from app.files.formats import START_BYTES, recognise

DESCRIPTION = "lenet5-inference"  # the name of what exports say beside their arrays: in it, the network
# Kinds of files, or endings of those that nothing recognises, of which import makes weights → a network to name for
# them; "" where the file tells or shows its own.
IMPORTED = {
    "an ONNX model": "",
    "a safetensors file": "lenet5",
    "a NumPy archive (.npz)": "lenet5",
    "a PyTorch file (.pt, .pth)": "lenet5",
    ".params": "",
    ".bin": "minidnn86",
}
GROUPS = (
    "of groups, as Keras writes, store the arrays as conv1, conv1_bias, fc1 and so on in an .npz file "
    "(docs/import.md), then: python main.py import FILE.npz --network lenet5 --out NEW.h5"
)


def refuse(path: Path, content: bytes) -> None:
    """Raise UserError for content, which is no HDF5 file's, whose kind is known, or the ending of its name."""
    kind = recognise(content[:START_BYTES])
    known = kind or path.suffix.lower()
    if known in IMPORTED:
        told = "" if DESCRIPTION.encode() in content else IMPORTED[known]
        remedy = f"make weights of it: {_command(path, told)}"
    elif kind is not None:
        remedy = "store its arrays as conv1, fc1 and so on (README)"
    else:
        return
    raise UserError(f"{path} is {kind or 'of another format'}, not HDF5 weights; {remedy}")


def _command(path: Path, network: str) -> str:
    """Return the command that imports the file into one that is not there yet, beside a word on its network."""
    out = f"{path.stem}.h5"
    if os.path.lexists(out):
        out = f"{path.stem}_imported.h5"
    named = f" --network {network}" if network else ""
    command = f"python main.py import {quote(str(path))}{named} --out {quote(out)}"
    return f"{command} (or the name or .toml file of its own network)" if network else command
