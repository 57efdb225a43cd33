"""MXNet's lists of named arrays (.params), of both record versions.

Little-endian, without alignment: uint64 0x112; uint64 0; uint64 n; n records; uint64 n; n names, each a uint64 length
and its bytes. A record: uint32 0xF993FAC9 and int32 storage type (0 dense), or uint32 0xF993FAC8 alone; uint32 ndim;
int64 x ndim shape; int32 device type and int32 device id, which mean nothing here; int32 number type; the numbers,
row-major. Names begin with arg: or aux:; their order is any.
"""

from math import prod

import numpy as np

from app.files.checks import BadValueError, format_for_error
from app.interchange.numbers import Cursor

MAGIC = 0x112
VERSION_1, VERSION_2 = 0xF993FAC8, 0xF993FAC9
LEAST_RECORD = 24  # bytes: version 1, one dimension, one byte of content
MAX_DIMENSIONS = 32
MAX_NAME = 1000
STORAGE = {1: "row_sparse", 2: "csr"}
# By the number of the type. Numbers without a name here, as bfloat16's 12, NumPy does not have.
TYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "?"}


def read_params(content: bytes) -> dict[str, np.ndarray]:
    """Read every array by its whole name, as it lies in the content. Raises BadValueError."""
    cursor = Cursor(content)
    magic, reserved = cursor.integer("Q", "its head"), cursor.integer("Q", "its head")
    if magic != MAGIC or reserved:
        if int.from_bytes(content[:8], "big") == MAGIC:
            raise BadValueError("is a big-endian list of MXNet's; save it again on a little-endian machine")
        raise BadValueError("does not begin as a list of MXNet's (0x112, 0); name a .params file of MXNet 0.11 to 1.9")
    count = cursor.integer("Q", "the number of arrays")
    if not 0 < count <= cursor.bytes_left // LEAST_RECORD:
        raise BadValueError(f"declares {count:,} arrays, but {cursor.bytes_left:,} bytes follow; get a fresh copy")
    arrays = [_read_array_record(cursor, f"array {at + 1} of {count:,}") for at in range(count)]
    names = cursor.integer("Q", "the number of names")
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
    version = cursor.integer("I", what)
    if version not in (VERSION_1, VERSION_2):
        known = f"{VERSION_1:#x} and {VERSION_2:#x} are known"
        raise BadValueError(f"has {what} in a record of version {version:#x}; {known}, save it with MXNet 0.11 to 1.9")
    storage = cursor.integer("i", what) if version == VERSION_2 else 0
    if storage:
        kind = STORAGE.get(storage, f"of type {storage}")
        raise BadValueError(f"stores {what} sparsely ({kind}); convert it with tostype('default')")
    dimensions = cursor.integer("I", what)
    if not 0 < dimensions <= MAX_DIMENSIONS:
        raise BadValueError(f"has {what} with {dimensions:,} dimensions; get a fresh copy")
    shape = tuple(cursor.integer("q", what) for _ in range(dimensions))
    if min(shape) < 1:
        raise BadValueError(f"has {what} of shape {shape}; get a fresh copy")
    cursor.take(8, what)  # the device that it lay on
    number = cursor.integer("i", what)
    if number not in TYPES:
        raise BadValueError(f"has {what} in numbers of type {number}; store it as float32 (type 0)")
    dtype = np.dtype(TYPES[number])
    return np.frombuffer(cursor.take(prod(shape) * dtype.itemsize, f"{what}, {prod(shape):,} numbers"), dtype).reshape(
        shape
    )


def _read_array_name(cursor: Cursor, what: str) -> str:
    length = cursor.integer("Q", what)
    if not 0 < length <= MAX_NAME:
        raise BadValueError(f"has {what} of {length:,} bytes; 1 to {MAX_NAME:,} are read, rename it")
    try:
        name = bytes(cursor.take(length, what)).decode("utf-8")
    except UnicodeDecodeError:
        raise BadValueError(f"has {what} that is not text in UTF-8; get a fresh copy") from None
    if not name.isprintable():
        raise BadValueError(f"has {what} with unprintable characters; rename it")
    return name
