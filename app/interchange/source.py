"""The content of a foreign file, as every reader returns it, and the checks of its numbers.

To add a format, write ``app/interchange/<format>.py`` with a function ``read(content, asked) -> Source``, and add a row
to ``FORMATS`` in app/network/foreign.py. The reader raises BadValueError for every fault, in one line that begins with
a verb, or with the name of an array, and ends with a remedy; ``read`` here puts the path in front, and checks the
numbers. The reader leaves the rest to the command: conversion to the weights file's layout (layout.py), checks of
shapes, the comparison of scores, writing.
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


class Asked(Frozen):
    """Options that the user gave for the file, None if absent. A reader refuses options that it does not use.

    network: names layers. symbol: an MXNet symbol file. size: height and width of the images that the layers read.
    name, path: for a network that the file does not name, and where the file is; they are not the user's, so they are
    ignored in comparisons.
    """

    network: Network | None = None
    symbol: Path | None = None
    size: int | None = None
    name: str = field(default="imported", compare=False)
    path: Path | None = field(default=None, compare=False)


class Engine(Frozen):
    """An installed engine that runs the file itself.

    name: with its version. logits: images (B, C, H, W) uint8, as the network reads them → the scores before a softmax,
    (B, classes).
    """

    name: str
    logits: Callable[[np.ndarray], np.ndarray]


class Source(Frozen):
    """A network and its arrays in their origin's layout.

    arrays: as our weights files name them: filters (M, C, K, K), fully connected weights (out, in) over the features in
    C, H, W order, biases <layer>_bias (out,); finite float32. origins: our name → the name in the file, where it has
    one. notes: what the reader converted, assumed or left out, each in a sentence. engine: None where only plain NumPy
    can check the import. unchanged: whether the file has the layout of weights files already. input_scale, classes:
    what the file says of the factor of bytes 0 to 255 and of the classes' names; None where the network's, or none.
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
        """The factor of bytes 0 to 255: the file's if it has one, else the network's."""
        return self.network.pixel_scale if self.input_scale is None else self.input_scale


def read(path: Path, asked: Asked) -> tuple[str, Source]:
    """Read the file; return the name of its format and its content. Raises UserError for every fault."""
    content = read_file(path, MAX_FILE_BYTES)
    found = _choose_format(path, content[:START_BYTES])
    try:
        source: Source = importlib.import_module(f"{__package__}.{found.module}").read(
            content, replace(asked, path=path)
        )
        check_numbers(source.arrays)
    except BadValueError as error:
        raise UserError(f"{path}: {error}") from error
    return found.name, source


def _choose_format(path: Path, start: bytes) -> ForeignFormat:
    """Choose the format by the kind of the content, else by the file's ending."""
    kind, name = recognise_file_kind(start), path.name.lower()
    found = next((row for row in FORMATS if (row.kind == kind if kind else name.endswith(row.ending))), None)
    if found is None:
        known = ", ".join(f"{row.name} ({row.ending})" for row in FORMATS)
        raise UserError(f"{path} is {kind or 'of an unknown format'}; import reads {known}")
    return found
