"""Read files safely: only regular files, only up to a limit, with every fault reported in one line."""

import os
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO

from app.base.errors import UserError
from app.files.checks import BadValueError, Check, format_for_error, parsed_json

HDF5 = b"\x89HDF\r\n\x1a\n"  # the first bytes of such a file
MAX_JSON_BYTES = 64 << 20
TOO_LARGE = "split it or store less in it"


def open_regular(path: Path, max_bytes: int = sys.maxsize, too_large: str = TOO_LARGE) -> BinaryIO:
    """Return a regular file of at most ``max_bytes``, open for reading. Raise UserError for any other file.

    too_large: remedy for a larger file.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer. Opening a device may have effects, so it is
        # checked.
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
            return stream.read(os.fstat(stream.fileno()).st_size)  # this much is allocated, however little is read
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}; copy it to another disk") from error
        except MemoryError as error:
            raise UserError(f"too little memory for the content of {path}; free some") from error


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first ``count`` bytes of a regular file, or all bytes of a shorter one.

    Raises UserError, and OSError if reading fails.
    """
    with open_regular(path) as stream:
        return stream.read(count)


def is_hdf5(path: Path) -> bool:
    """Return whether a file begins as HDF5 files do; False if it cannot be read (its reader reports that)."""
    try:
        return first_bytes(path, len(HDF5)) == HDF5
    except (UserError, OSError):
        return False


def read_json(path: Path, check: Check, remedy: str) -> Any:
    """Return the JSON of a regular file of at most 64 MiB, checked by ``check``.

    A name twice in an object and NaN are errors. Raises UserError, with ``remedy``, for any fault.
    """
    content = read_file(path, MAX_JSON_BYTES)
    try:
        value = parsed_json(content.decode("utf-8"))
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
    """Return whether ``path`` exists. If the system cannot tell, return True: a later read reports the reason."""
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
