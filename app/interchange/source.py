"""Define ``Source``, the result of every reader of another system's files; choose the reader; check the numbers.

To add a format, write ``app/interchange/<format>.py`` with a function ``read_source(content, options)``, and add a row
to ``FORMATS`` in app/network/foreign.py. The reader raises BadValueError for every fault; the text is one line that
begins with a verb, or with the name of an array, and ends with a remedy. ``read_source_file`` puts the path in front of
the text and checks the numbers. ``main.py import`` does everything else: it converts arrays to the weights file's
layout (layout.py), checks shapes, compares scores and writes the file.
"""

import importlib
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.files.checks import BadValueError, format_for_error
from app.files.reading import START_BYTES, read_file, recognise_file_kind
from app.network.definitions import Network
from app.network.foreign import FORMATS, ForeignFormat

# Plausible range of the largest absolute weight. Floats in the wrong byte order spread over the whole range of float32,
# 1e-38 to 1e38.
PLAUSIBLE = (1e-6, 1e6)
# Limit of a file's size, unpacked and with the data files beside it, and of its numbers as float32. Import needs up to
# seven times as much memory, less than 1 GB, because it compares scores and keeps the file for its engine.
MAX_FILE_BYTES = 96 << 20


def as_float32(name: str, array: np.ndarray, notes: list[str]) -> np.ndarray:
    """Return an array of a float type as float32 in native byte order; note in ``notes`` if that rounds or widens.

    Raises BadValueError, which names ``name``, for other types, and for values beyond float32's range.
    """
    kind, size = array.dtype.name, array.dtype.itemsize
    if array.dtype.kind != "f" or size > 8:
        raise BadValueError(f"{format_for_error(name)} is stored as {kind}; store it as float32")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = array.astype(np.float32)
    if np.isinf(single).any() and np.isfinite(array).all():
        raise BadValueError(f"{format_for_error(name)} has values beyond the range of float32; scale the weights down")
    if size != single.itemsize:
        how = "rounded" if size > single.itemsize else "widened, exactly,"
        notes.append(f"{format_for_error(name)}: {kind} {how} to float32")
    return single


def check_numbers(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise BadValueError for NaN, infinite values, too many numbers, or the wrong byte order. arrays: float32."""
    if not _are_plausible(arrays.values()) and _are_plausible([array.byteswap() for array in arrays.values()]):
        raise BadValueError("has big-endian floats, but little-endian ones belong there; swap their bytes")
    if (size := sum(array.nbytes for array in arrays.values())) > MAX_FILE_BYTES:
        raise BadValueError(f"holds {size:,} bytes as float32; at most {MAX_FILE_BYTES:,} are read: store less in it")
    for name, array in arrays.items():
        bad = array.size - int(np.isfinite(array).sum())
        if bad:
            raise BadValueError(f"{name} contains {bad:,} NaN or infinite values; get a fresh copy")


def _are_plausible(arrays: Iterable[np.ndarray]) -> bool:
    with np.errstate(invalid="ignore"):
        largest = np.max([np.abs(array).max() for array in arrays], initial=0)
    return bool(PLAUSIBLE[0] <= largest <= PLAUSIBLE[1])


class Cursor:
    """A position in little-endian content; each method reads from it and moves it, never beyond the end."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def bytes_left(self) -> int:
        """Return the number of bytes after the current position."""
        return len(self._content) - self._at

    def read_int(self, kind: str, what: str) -> int:
        """Read an integer. kind: its format in the module ``struct``. what: its name for the BadValueError."""
        value: int = struct.unpack(f"<{kind}", self.read_bytes(struct.calcsize(f"<{kind}"), what))[0]
        return value

    def read_bytes(self, count: int, what: str) -> memoryview:
        """Read ``count`` bytes. Raises BadValueError, naming ``what``, if fewer are left."""
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


class ImportOptions(Frozen):
    """Options of ``main.py import``; None if not given. A reader refuses options that it does not use.

    network: the network of the arrays. symbol: an MXNet symbol file. size: height and width of the images that the
    layers read. The command derives the other two from the file, so comparisons ignore them: name, for a network that
    the file does not name, and path of the file.
    """

    network: Network | None = None
    symbol: Path | None = None
    size: int | None = None
    name: str = field(default="imported", compare=False)
    path: Path | None = field(default=None, compare=False)


class Engine(Frozen):
    """Another implementation that computes the scores of a file's network. name: its name and version.

    logits: function from images (B, C, H, W) uint8, of the size that the network reads, to the scores before a softmax,
    (B, classes).
    """

    name: str
    logits: Callable[[np.ndarray], np.ndarray]


class Source(Frozen):
    """The network and arrays that a reader found in another system's file.

    arrays: finite float32, by name in this program's weights files: filters (M, C, K, K), fully connected weights (out,
    in) over features in C, H, W order, biases <layer>_bias (out,). origins: array name → name in the file, if it has
    one. notes: what the reader converted, assumed or omitted, one sentence each. engine: None if only NumPy can check
    the import. unchanged: whether the file already has the layout of weights files. input_scale, classes: factor for
    pixel bytes and names of the classes; None if the file has none.
    """

    network: Network
    arrays: Mapping[str, np.ndarray]
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()
    engine: Engine | None = None
    unchanged: bool = False
    input_scale: float | None = None
    classes: tuple[str, ...] | None = None

    @property
    def scale(self) -> float:
        """Return the factor for pixel bytes from the file or, if the file has none, from the network."""
        return self.network.pixel_scale if self.input_scale is None else self.input_scale


def read_source_file(path: Path, options: ImportOptions) -> tuple[ForeignFormat, Source]:
    """Read another system's file; return its format and its content. Raises UserError for every fault."""
    content = read_file(path, MAX_FILE_BYTES)
    found = _choose_format(path, content[:START_BYTES])
    try:
        reader = importlib.import_module(f"{__package__}.{found.module}")
        source: Source = reader.read_source(content, replace(options, path=path))
        check_numbers(source.arrays)
    except BadValueError as error:
        raise UserError(f"{path}: {error}") from error
    return found, source


def _choose_format(path: Path, start: bytes) -> ForeignFormat:
    """Return the format that a file's first bytes, ``start``, or else its suffix tell. Raises UserError for none."""
    kind, name = recognise_file_kind(start), path.name.lower()
    found = next((row for row in FORMATS if (row.kind == kind if kind else name.endswith(row.ending))), None)
    if found is None:
        known = ", ".join(f"{row.name} ({row.ending})" for row in FORMATS)
        raise UserError(f"{path} is {kind or 'of an unknown format'}; import reads {known}")
    return found
