"""Read files safely, within size limits and with errors of one line; recognise a file's kind by its first bytes."""

import os
import re
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO

from app.base.errors import UserError
from app.files.checks import BadValueError, Check, format_for_error, parse_json

HDF5 = b"\x89HDF\r\n\x1a\n"  # first bytes of an HDF5 file
START_BYTES = 512  # number of bytes that ``recognise_file_kind`` needs

# The first bytes of each kind of content.
_BEGINNINGS = {
    rb"\x89PNG\r\n\x1a\n": "a PNG picture",
    rb"\xff\xd8\xff": "a JPEG picture",
    rb"GIF8[79]a": "a GIF picture",
    rb"II\*\0|MM\0\*": "a TIFF picture",
    rb"RIFF.{4}WEBP": "a WebP picture",
    rb"BM.{4}\0{4}": "a BMP picture",
    rb".{4}ftyp(hei[cmsx]|mif1|msf1)": "a HEIC picture",
    rb".{4}ftypavi[fs]": "an AVIF picture",
    re.escape(HDF5): "an HDF5 file",
    rb"\x93NUMPY": "a NumPy array (.npy)",
    rb"%PDF-": "a PDF document",
    rb"\x1f\x8b": "a gzip file",
    rb"BZh": "a bzip2 archive",
    rb"\xfd7zXZ\0": "an xz archive",
    rb"\x28\xb5\x2f\xfd": "a zstd archive",
    rb"7z\xbc\xaf\x27\x1c": "a 7z archive",
    rb"PAR1": "a Parquet table",
    rb"MATLAB 5\.0": "a MATLAB file",
    rb"\0\0[\x08-\x0e][\x01-\x08]": "an IDX file",
    rb"\x12\x01\0{14}": "a list of MXNet's arrays",
    rb".{4}\0{4}\{\"": "a safetensors file",  # the length of its JSON header, below 4 GiB, and the header
    rb"\x80[\x02-\x05][\x20-\x7e\x80-\x9f]": "a Python pickle, as PyTorch's old .pt and .pth files are",
    rb"\x08[\x01-\x1f](\x12[\x00-\x7f][\x20-\x7e]|\x1a|\x22|\x3a|\x42)": "an ONNX model",  # ir_version, producer
}


def recognise_file_kind(start: bytes) -> str | None:
    """Return the kind of a file with an article, such as "a PNG picture"; None if it is unknown.

    start: the first ``START_BYTES`` of the file, or all of a shorter file.
    """
    if start.startswith(b"PK\3\4"):
        return _zip_kind(start)
    kinds = (name for beginning, name in _BEGINNINGS.items() if re.match(beginning, start, re.DOTALL))
    return next(kinds, None) or _text_kind(start)


def _zip_kind(start: bytes) -> str:
    """Return the kind of a zip archive, which the name of its first member shows."""
    member = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    if member.endswith(b".npy"):
        return "a NumPy archive (.npz)"
    if re.search(rb"/(data\.pkl|data/\d+|version|byteorder|\.format_version)\Z", member):
        return "a PyTorch file (.pt, .pth)"
    if b"/data/weights/" in member:
        return "a program of torch.export (.pt2)"
    if member in (b"metadata.json", b"config.json"):
        return "a Keras model"
    return "a zip archive"


def _text_kind(start: bytes) -> str | None:
    """Return the kind of a text file; None if the bytes are not text."""
    try:
        text = start.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if not start or error.end < len(start) - 3:  # the last character may be cut off
            return None
        text = start[: error.start].decode("utf-8-sig")
    if not text.strip() or not all(character.isprintable() or character in "\t\r\n\f" for character in text):
        return None
    if text.lstrip().startswith("<"):
        return "a web page"
    if text.lstrip().startswith(("{", "[")):
        return "a JSON file"
    first = text.lstrip().splitlines()[0]
    if any(first.count(mark) >= 2 for mark in ",;\t"):
        return "a table in text (CSV)"
    return "a text file"


MAX_JSON_BYTES = 64 << 20
TOO_LARGE = "split it or store less in it"


def open_regular(path: Path, max_bytes: int = sys.maxsize, too_large: str = TOO_LARGE) -> BinaryIO:
    """Return a regular file of at most ``max_bytes``, open for reading. Raise UserError for any other file.

    too_large: the remedy that the error gives for a larger file.
    """
    try:
        # Opening a device may have effects, so the path is checked first. O_NONBLOCK: a named pipe does not wait.
        _check_regular(path, path.stat().st_mode)
        stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; check the name") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {reason}; check the name and its permissions") from error
    try:
        status = os.fstat(stream.fileno())  # the opened file may not be the one just checked
        _check_regular(path, status.st_mode)
        if status.st_size > max_bytes:
            raise UserError(
                f"{path} has {status.st_size:,} bytes, more than the {max_bytes:,} that are read; {too_large}"
            )
    except BaseException:
        stream.close()
        raise
    return stream


def read_file(path: Path, max_bytes: int, too_large: str = TOO_LARGE) -> bytes:
    """Return the content of a regular file of at most ``max_bytes``. Raises UserError as ``open_regular`` does."""
    with open_regular(path, max_bytes, too_large) as stream:
        try:
            return stream.read(os.fstat(stream.fileno()).st_size)  # ``read`` allocates its whole argument at once
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}; copy it to another disk") from error
        except MemoryError as error:
            raise UserError(f"too little memory for the content of {path}; free some") from error


def read_first_bytes(path: Path, count: int) -> bytes:
    """Return the first ``count`` bytes of a regular file, or all if it is shorter. Raises UserError and OSError."""
    with open_regular(path) as stream:
        return stream.read(count)


def is_hdf5(path: Path) -> bool:
    """Return whether a file begins as HDF5 files do; False if it cannot be read, which its reader will report."""
    try:
        return read_first_bytes(path, len(HDF5)) == HDF5
    except (UserError, OSError):
        return False


def read_json(path: Path, check: Check, remedy: str) -> Any:
    """Return the JSON value in a regular file of at most 64 MiB, as the function ``check`` returns it.

    NaN, and a name twice in an object, are errors. Raises UserError, which ends with ``remedy``, for any fault.
    """
    content = read_file(path, MAX_JSON_BYTES)
    try:
        value = parse_json(content.decode("utf-8"))
    except ValueError as error:  # UnicodeDecodeError is one
        why = (
            str(error).removeprefix("not JSON: ") if isinstance(error, BadValueError) else format_for_error(str(error))
        )
        raise UserError(f"{path} is not JSON ({why}): {remedy}") from None
    try:
        return check(value)
    except BadValueError as error:
        raise UserError(f"{path} has wrong content ({error}): {remedy}") from None


def may_exist(path: Path) -> bool:
    """Return whether ``path`` exists; True also if the system cannot tell: a later read then reports the reason."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        pass
    return True


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise UserError(f"{path} is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is not a regular file; copy its content to one")
