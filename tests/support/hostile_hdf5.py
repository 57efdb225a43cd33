"""Write simple HDF5 files, and files that crash the HDF5 library, made by hand or by seeded damage."""

import io
import random
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from app.files.hdf5 import build_hdf5_bytes
from tests.fuzz.mutate import lookup3

ARRAYS = {"fc1": np.ones((4, 3), np.float32), "fc2": np.ones((3, 3), np.float32)}


def write_hdf5(path: Path, datasets: Mapping[str, object], **attributes: object) -> Path:
    """Write datasets and the root's attributes by h5py with default settings, but strings with a fixed length."""
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
        file.attrs.update({k: np.bytes_(v.encode()) if isinstance(v, str) else v for k, v in attributes.items()})
    return path


def node_that_is_its_own_child() -> bytes:
    """Return a file in which a node of a group's B-tree is its own child, so that HDF5 descends for ever."""
    content = bytearray(build_hdf5_bytes(ARRAYS, {"network": "mlp"}))
    node = content.index(b"TREE")
    content[node + 5] = 1  # the level: no longer a leaf
    struct.pack_into("<Q", content, node + 32, node)
    return bytes(content)


def circle_of_free_names() -> bytes:
    """Return a file whose list of free places among a group's names is circular, so that HDF5 follows it for ever."""
    content = bytearray(build_hdf5_bytes(ARRAYS, {"network": "mlp"}))
    first, names = struct.unpack_from("<QQ", content, content.index(b"HEAP") + 16)
    struct.pack_into("<Q", content, names + first, first)
    return bytes(content)


def endless() -> bytes:
    """Return a file whose dataset declares 2⁶³ chunks: HDF5 checks each of them and never handles a signal."""
    content = bytearray(new_format())
    begin = content.index(b"EAHD")
    struct.pack_into("<Q", content, begin + 44, 1 << 63)
    struct.pack_into("<I", content, begin + 68, lookup3(bytes(content[begin : begin + 68])))
    return bytes(content)


def new_format() -> bytes:
    """Return a file in the newest format, in which most structures have a checksum."""
    stream = io.BytesIO()
    with h5py.File(stream, "w", libver="latest") as file:
        for name, array in ARRAYS.items():
            file.create_dataset(name, data=array, chunks=(2, 3), compression="gzip", fletcher32=name == "fc2")
        for i in range(10):  # more than fit into the header: they move to a heap and a B-tree
            file.attrs[f"attribute {i}"] = np.arange(i)
        file.create_dataset("fc3", data=np.ones((40, 3), np.float32), chunks=(1, 3), maxshape=(None, 3))
    return stream.getvalue()


def checked_blocks(content: bytes) -> list[tuple[int, int]]:
    """Return begin and end of each block of bytes that its checksum follows."""
    found = []
    for begin in (match.start() for match in re.finditer(rb"\x89HDF|[A-Z]{4}", content)):
        for end in range(begin + 24, min(begin + 300, len(content) - 4)):
            if struct.unpack_from("<I", content, end)[0] == lookup3(content[begin:end]):
                found.append((begin, end))
                break
    return found


def damaged(content: bytes, blocks: list[tuple[int, int]], seed: int) -> bytes:
    """Return the content with a few bytes of the blocks replaced and all checksums corrected."""
    rng, changed = random.Random(seed), bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        begin, end = rng.choice(blocks)
        changed[rng.randrange(begin + 4, end)] = rng.choice([0, 1, 255, rng.randrange(256)])
    for begin, end in blocks:
        struct.pack_into("<I", changed, end, lookup3(bytes(changed[begin:end])))
    return bytes(changed)
