"""Read numbers of foreign files, check them, and convert them to float32."""

import struct
from collections.abc import Iterable, Mapping

import numpy as np

from app.files.checks import BadValueError, format_for_error

# Between these, the largest of a network's weights is plausible. Floats in the wrong byte order spread over the whole
# range of float32, 1e-38 to 1e38.
PLAUSIBLE = (1e-6, 1e6)
# Of a file, unpacked and with its data beside it, and of its numbers as float32. The comparison of scores doubles them,
# and the file's own engine keeps the file: import takes up to seven times as much, less than 1 GB.
MAX_FILE_BYTES = 96 << 20


def as_float32(name: str, array: np.ndarray, notes: list[str]) -> np.ndarray:
    """Convert an array of any float type to native float32, with a note if it had another one.

    Raises BadValueError for other types, and for values beyond float32's range.
    """
    kind, size = array.dtype.name, array.dtype.itemsize
    if array.dtype.kind != "f" or size > 8:
        raise BadValueError(f"{format_for_error(name)} is stored as {kind}; store it as float32")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = array.astype(np.float32)
    if np.isinf(single).any() and np.isfinite(array).all():
        raise BadValueError(f"{format_for_error(name)} has values beyond the range of float32; scale the weights down")
    if size != single.itemsize:
        notes.append(
            f"{format_for_error(name)}: {kind} {'rounded' if size > single.itemsize else 'widened, exactly,'} to "
            "float32"
        )
    return single


def check_numbers(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise BadValueError for NaN, infinite values, too many, and the wrong byte order. arrays: float32."""
    if not _plausible(arrays.values()) and _plausible([array.byteswap() for array in arrays.values()]):
        raise BadValueError("has big-endian floats, but little-endian ones belong there; swap their bytes")
    if (size := sum(array.nbytes for array in arrays.values())) > MAX_FILE_BYTES:
        raise BadValueError(f"holds {size:,} bytes as float32; at most {MAX_FILE_BYTES:,} are read: store less in it")
    for name, array in arrays.items():
        bad = array.size - int(np.isfinite(array).sum())
        if bad:
            raise BadValueError(f"{name} contains {bad:,} NaN or infinite values; get a fresh copy")


def _plausible(arrays: Iterable[np.ndarray]) -> bool:
    with np.errstate(invalid="ignore"):
        largest = np.max([np.abs(array).max() for array in arrays], initial=0)
    return bool(PLAUSIBLE[0] <= largest <= PLAUSIBLE[1])


class Cursor:
    """Reads integers and blocks of bytes from little-endian content one after another, and never beyond its end."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def bytes_left(self) -> int:
        """The number of bytes from this position on."""
        return len(self._content) - self._at

    def integer(self, kind: str, what: str) -> int:
        """Read one integer of this type of the struct module. Raises BadValueError, naming ``what``."""
        value: int = struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}"), what))[0]
        return value

    def take(self, count: int, what: str) -> memoryview:
        """Take this many bytes. Raises BadValueError, naming ``what``, if fewer are left."""
        if not 0 <= count <= self.bytes_left:
            raise BadValueError(
                f"ends within {what}: {self.bytes_left:,} of {count:,} bytes are left; get a fresh copy"
            )
        self._at += count
        return memoryview(self._content)[self._at - count : self._at]

    def check_end(self, what: str) -> None:
        """Raise BadValueError if bytes follow ``what``."""
        if self.bytes_left:
            raise BadValueError(f"has {self.bytes_left:,} bytes after {what}; get a fresh copy")
