"""HDF5 files: simple ones, and ones that crash the library, made by hand or by seeded damage."""

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
    """Write the datasets and the root's attributes as h5py does by itself, but texts with a fixed length."""
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
        file.attrs.update({k: np.bytes_(v.encode()) if isinstance(v, str) else v for k, v in attributes.items()})
    return path


def own_child() -> bytes:
    """The node of a group's B-tree is its own child: HDF5 descends for ever."""
    content = bytearray(build_hdf5_bytes(ARRAYS, {"network": "mlp"}))
    node = content.index(b"TREE")
    content[node + 5] = 1  # the level: no longer a leaf
    struct.pack_into("<Q", content, node + 32, node)
    return bytes(content)


def circle_of_free_names() -> bytes:
    """The list of free places among a group's names leads back to its beginning: HDF5 notes the same place for ever."""
    content = bytearray(build_hdf5_bytes(ARRAYS, {"network": "mlp"}))
    first, names = struct.unpack_from("<QQ", content, content.index(b"HEAP") + 16)
    struct.pack_into("<Q", content, names + first, first)
    return bytes(content)


def endless() -> bytes:
    """The index of a dataset's chunks is said to have 2⁶³ of them: HDF5 looks at each, and never at a signal."""
    content = bytearray(new_format())
    begin = content.index(b"EAHD")
    struct.pack_into("<Q", content, begin + 44, 1 << 63)
    struct.pack_into("<I", content, begin + 68, lookup3(bytes(content[begin : begin + 68])))
    return bytes(content)


def new_format() -> bytes:
    """A file in the newest format, most of whose structures carry a checksum."""
    stream = io.BytesIO()
    with h5py.File(stream, "w", libver="latest") as file:
        for name, array in ARRAYS.items():
            file.create_dataset(name, data=array, chunks=(2, 3), compression="gzip", fletcher32=name == "fc2")
        for i in range(10):  # more than fit into the header: they move to a heap and a B-tree
            file.attrs[f"attribute {i}"] = np.arange(i)
        file.create_dataset("fc3", data=np.ones((40, 3), np.float32), chunks=(1, 3), maxshape=(None, 3))
    return stream.getvalue()


def checked_blocks(content: bytes) -> list[tuple[int, int]]:
    """Begin and end of what is followed by its own checksum."""
    found = []
    for begin in (match.start() for match in re.finditer(rb"\x89HDF|[A-Z]{4}", content)):
        for end in range(begin + 24, min(begin + 300, len(content) - 4)):
            if struct.unpack_from("<I", content, end)[0] == lookup3(content[begin:end]):
                found.append((begin, end))
                break
    return found


def damaged(content: bytes, blocks: list[tuple[int, int]], seed: int) -> bytes:
    """A few bytes of the blocks replaced, and all checksums put right again."""
    rng, changed = random.Random(seed), bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        begin, end = rng.choice(blocks)
        changed[rng.randrange(begin + 4, end)] = rng.choice([0, 1, 255, rng.randrange(256)])
    for begin, end in blocks:
        struct.pack_into("<I", changed, end, lookup3(bytes(changed[begin:end])))
    return bytes(changed)
