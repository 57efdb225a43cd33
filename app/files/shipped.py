"""Find and read the weights that the project ships: one file per network in ``weights/``, with its hash in SHA256SUMS.

HDF5 can load a damaged file silently with wrong values. So the program first hashes the content of a file, and then
HDF5 opens exactly the bytes that were hashed.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from app.base.errors import UserError
from app.base.interrupts import exit_on_interrupt
from app.files.reading import may_exist, read_file
from app.files.writing import replace_atomically

if TYPE_CHECKING:  # the command line must not import NumPy
    from app.files.hdf5 import FileContents, ReadRequest

FOLDER = Path(__file__).parents[2] / "weights"
CHECKSUMS = "SHA256SUMS"
SUFFIX = "_fashion.h5"


def weights_path(network: str) -> Path:
    """Return the path where the network's weights are, or would be if the project shipped them."""
    return FOLDER / f"{network}{SUFFIX}"


def find_shipped_weights(network: str) -> Path:
    """Return the path of the shipped weights of the network with this name. Raises UserError if there are none."""
    path = weights_path(network)
    if not path.exists():
        raise missing_weights_error(network)
    return path


def missing_weights_error(network: str, option: str = "--weights") -> UserError:
    """Return the error for a network without shipped weights. option: name of the option that gives other weights."""
    return UserError(
        f"no weights of network {network} are shipped: make some with python main.py train --network {network}, "
        f"and name them with {option}"
    )


def reference_path(weights: Path) -> Path:
    """Return the path of the file with the float64 reference results for a weights file."""
    return weights.with_name(f"{weights.stem}_reference.h5")


def is_shipped_weights(path: Path) -> bool:
    """Return whether the path, with links resolved, is a file of shipped weights."""
    real = path.resolve()
    return real.parent == FOLDER.resolve() and real.name.endswith(SUFFIX)


def is_shipped(path: Path) -> bool:
    """Return whether the path, with links resolved, is SHA256SUMS, a file that it lists, or a shipped weights file."""
    real = path.resolve()
    return real.parent == FOLDER.resolve() and (
        is_shipped_weights(path) or real.name == CHECKSUMS or real.name in read_checksums(FOLDER)
    )


def check_shipped_hash(path: Path, content: bytes) -> None:
    """Raise UserError unless SHA256SUMS lists the hash of this content for the shipped file at ``path``."""
    if read_checksums(FOLDER).get(path.resolve().name) != hashlib.sha256(content).hexdigest():
        raise UserError(f"{path} does not match its checksum in {CHECKSUMS}; run: git checkout -- weights")


def read_verified_hdf5(path: Path, content: bytes, wanted: ReadRequest) -> FileContents:
    """Return the wanted parts of an HDF5 file from its bytes, whose hash has been checked. Raises UserError."""
    with exit_on_interrupt():  # Ctrl-C while h5py loads would become an ImportError
        from app.files.hdf5_strict import open_strict, read_contents

    with open_strict(path, content) as file:
        return read_contents(file, wanted)


def read_checksums(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that the directory's SHA256SUMS lists; {} without it. Raises UserError."""
    path = directory / CHECKSUMS
    if not may_exist(path):
        return {}
    lines = read_file(path, 1 << 20).decode(errors="replace").splitlines()
    entries = [re.fullmatch(r"([0-9a-f]{64}) [ *](\S+)", line) for line in lines]
    if not all(entries):
        raise UserError(f"{path} has lines that are not in the sha256sum format; get a fresh copy of it")
    return {entry[2]: entry[1] for entry in entries if entry}


def record_checksum(path: Path) -> None:
    """Write the hash of a file into the SHA256SUMS in its folder; keep the other lines. Raises UserError."""
    sums = read_checksums(path.parent) | {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    with replace_atomically(path.parent / CHECKSUMS) as temporary:
        temporary.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
