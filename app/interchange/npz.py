"""NPZ files: a zip archive of NumPy arrays, read without pickle and within limits."""

import io
import warnings
import zipfile
import zlib
from math import prod

import numpy as np
from numpy.lib import format as npy

from app.files.checks import BadValueError, shown
from app.interchange.named_arrays import MAX_ARRAYS, NamedArrays, described, source_of
from app.interchange.source import Asked, Source
from app.network.foreign import DESCRIPTION
from app.network.weights import MAX_BYTES

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
MAX_HEADER_BYTES = 1 << 16  # NumPy reads no header of more than 10,000 characters
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that NumPy writes


def read(content: bytes, asked: Asked) -> Source:
    """Read an NPZ file of the asked network, or of the one that the file describes. Raises BadValueError."""
    return source_of(read_npz(content), asked)


def read_npz(content: bytes) -> NamedArrays:
    """Read all arrays. Raises BadValueError for damage, and for arrays of objects, which would be pickles."""
    arrays = read_arrays(content, MAX_BYTES)
    text = arrays.pop(DESCRIPTION, None)
    return NamedArrays(arrays, None if text is None else described(_text(text)))


def read_arrays(content: bytes, max_bytes: int) -> dict[str, np.ndarray]:
    """Read all arrays of an NPZ file that unpack to at most ``max_bytes``: name → array, read-only.

    Raises BadValueError for damage, and for arrays of objects, which would be pickles.
    """
    try:
        members = _members(content, max_bytes)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError) as error:
        if isinstance(error, BadValueError):
            raise
        raise BadValueError(f"is no zip archive that can be read: {shown(str(error))}; get a fresh copy") from None
    return {name: read_array(shown(name), member) for name, member in members.items()}


def npz_content(named: NamedArrays) -> bytes:
    """Return the content of an NPZ file; equal arguments give equal bytes."""
    arrays = dict(named.arrays)
    if named.description is not None:
        arrays[DESCRIPTION] = np.array(named.description.text.encode())  # as text, any four bytes would be a character
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                npy.write_array(member, np.ascontiguousarray(array) if array.ndim else array, allow_pickle=False)
    return stream.getvalue()


def _text(array: np.ndarray) -> str:
    """Return the text of an array of one string of bytes, in UTF-8."""
    try:
        return bytes(array.item()).decode("utf-8") if array.dtype.kind == "S" else ""
    except ValueError:  # several strings, or no UTF-8
        return ""


def _members(content: bytes, max_bytes: int) -> dict[str, bytes]:
    """Return the unpacked members; their declared sizes are checked before anything is unpacked."""
    members: dict[str, bytes] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        listed = archive.infolist()
        size = sum(member.file_size for member in listed)
        if len(listed) > MAX_ARRAYS or size > max_bytes:
            limits = f"at most {MAX_ARRAYS:,} arrays and {max_bytes:,} bytes are read"
            raise BadValueError(f"holds {len(listed):,} arrays of {size:,} bytes; {limits}: store less in it")
        for member in listed:
            name = member.filename.removesuffix(".npy")
            if name in members:
                raise BadValueError(f"contains {shown(name)} twice; save it again")
            if member.compress_type not in _COMPRESSIONS:
                raise BadValueError(f"{shown(name)} is packed in a way that NumPy does not write; save it again")
            members[name] = archive.read(member)  # never more than the size it declares
    return members


def read_array(name: str, content: bytes) -> np.ndarray:
    """Return the array of an NPY file, a read-only view of its content. name: the subject of errors.

    Raises BadValueError for damage, for no numbers, and for objects, which would be pickles.
    """
    shape, in_columns, dtype, offset = read_header(name, content)
    data = memoryview(content)[offset:]
    if prod(shape) * dtype.itemsize != len(data):
        raise BadValueError(f"{name} does not have the bytes that its shape needs; get a fresh copy")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if in_columns else "C")


def read_header(name: str, start: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Read the header of an NPY file: shape, whether it is stored by columns, type, and where the numbers begin.

    start: at least the first ``MAX_HEADER_BYTES`` of the file, or all of it. name: the subject of errors. Raises
    BadValueError for damage, for no numbers, and for objects, which would be pickles.
    """
    stream = io.BytesIO(start)
    try:
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"version {version} of the format")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            shape, in_columns, dtype = _HEADERS[version](stream)
    except Exception as error:  # NumPy parses the header as Python, which fails in many ways
        raise BadValueError(f"{name} is no array: {shown(str(error))}; save it again") from None
    if dtype.hasobject:
        raise BadValueError(f"{name} contains pickled objects, which may run code; store plain numbers")
    if 0 in shape:
        raise BadValueError(f"{name} is empty, its shape is {shape}; save it with content")
    if min(shape, default=1) < 1:
        raise BadValueError(f"{name} does not have the bytes that its shape needs; get a fresh copy")
    return shape, in_columns, dtype, stream.tell()
