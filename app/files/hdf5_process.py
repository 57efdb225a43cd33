"""Read HDF5 files through another process, and check its answers.

A damaged file can crash HDF5 or keep it busy for ever: only the other process then ends. Its answer is a file of shared
memory with the arrays, and a header that names them; every value in the header is checked.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from app.errors import UserError
from app.files.child_process import Child, memory_file
from app.files.formats import HDF5
from app.files.hdf5 import MAX_FILE_BYTES, Attribute, Contents, Described, Wanted, printable
from app.files.hdf5_start import start
from app.files.reading import open_regular

SECONDS = 10  # processor time allowed for a small file; it takes milliseconds
BYTES_A_SECOND = 4 << 20  # slowest accepted rate for a large file
WAITING = 6  # clock time allowed per second of processor time: the processor may have other work
START_SECONDS = 120
MAX_HEADER_BYTES = 8 << 20
Answer = TypeVar("Answer")
NONSENSE = "HDF5 gives impossible values for it"
MAX_ERROR_CHARACTERS = 6000  # a path alone may have 4,096

_WHERE = re.compile(rb"\d{1,12} \d{1,12}")
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Reader(AbstractContextManager["Reader"]):
    """Reads files one by one, through a process that starts at the first file and ends with the ``with`` block.

    If a file crashes the process, the next file gets a new one. The process also ends with the thread that started it.
    """

    def __init__(self) -> None:
        self._child: Child | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._child is not None:
            self._child.end()
        self._child = None

    def read(self, path: Path, content: bytes | None, wanted: Wanted) -> Contents:
        """Read one file; see ``hdf5.read_untrusted``. Raises UserError."""

        def checked(answer: Any, result: int) -> Contents:
            attributes = {str(name): _attribute(value) for name, value in answer["attributes"].items()}
            names = tuple(str(name) for name in answer["names"])
            arrays: dict[str, np.ndarray] = {}
            end, left = os.fstat(result).st_size, wanted.max_bytes
            for name, kind, shape, offset in answer["arrays"]:
                arrays[str(name)] = _array(np.dtype(str(kind)), shape, offset, min(left, end - offset), result)
                left -= arrays[str(name)].nbytes
            if not (arrays.keys() <= set(names) and attributes.keys() <= set(wanted.attributes)):
                raise ValueError("nobody asked for this")
            return Contents(names, arrays, attributes)

        with (
            _faults(path),
            open_regular(path, MAX_FILE_BYTES, wanted.too_large) if content is None else memory_file(content) as source,
        ):
            request = {"what": "contents", "in_memory": content is not None, **vars(wanted)}
            return self._ask(path, source, request, os.fstat(source.fileno()).st_size, checked)

    def describe(self, path: Path, source: BinaryIO, datasets: Sequence[str]) -> tuple[list[str], dict[str, Described]]:
        """Return the names in the root of a file of any size, and how these datasets lie in it, if they exist.

        Raises UserError as ``read`` would, but for their size.
        """

        def checked(answer: Any, _: int) -> tuple[list[str], dict[str, Described]]:
            found = {str(name): _described(*parts) for name, *parts in answer["datasets"]}
            if not found.keys() <= set(datasets):
                raise ValueError("nobody asked for this")
            return [str(name) for name in answer["names"]], found

        return self._ask(path, source, {"what": "descriptions", "datasets": datasets}, 0, checked)

    def rows(self, path: Path, source: BinaryIO, name: str, first: int, like: np.ndarray) -> np.ndarray:
        """Read rows of a dataset in the root of a file of any size, from row ``first`` on.

        like: gives their number, shape and type. Raises UserError.
        """

        def checked(answer: Any, result: int) -> np.ndarray:
            kind, shape, offset = answer["rows"]
            array = _array(np.dtype(str(kind)), shape, offset, os.fstat(result).st_size - offset, result)
            if (array.dtype, array.shape) != (like.dtype, like.shape):
                raise ValueError("nobody asked for this")
            return array

        request = {"what": "rows", "dataset": name, "first": first, "count": len(like)}
        return self._ask(path, source, request, like.nbytes, checked)

    def _ask(
        self, path: Path, source: BinaryIO, request: dict[str, Any], nbytes: int, checked: Callable[[Any, int], Answer]
    ) -> Answer:
        """Return the checked answer to a request about ``source``. nbytes: what it may take time for."""
        with _faults(path), memory_file() as result:
            if os.pread(source.fileno(), len(HDF5), 0) != HDF5:
                raise UserError(
                    f"{path} is not an HDF5 file (its first bytes say so); name another file or make it again"
                )
            asked = {"path": str(path), "in_memory": False, **request, "seconds": SECONDS + nbytes // BYTES_A_SECOND}
            try:
                header = self._answer(path, source, result, asked)
            except BaseException:  # e.g. Ctrl-C while the process is working
                self.close()
                raise
            return _checked(path, header, lambda answer: checked(answer, result.fileno()))

    def _answer(self, path: Path, source: BinaryIO, result: BinaryIO, request: dict[str, Any]) -> bytes:
        """Have the process answer into ``result`` and return the header; from then on nobody can shorten ``result``."""
        child, seconds = self._ready(), request["seconds"]
        child.send(json.dumps(request).encode(), [source, result])
        try:
            said = child.receive(seconds * WAITING)
        except TimeoutError:
            raise _unreadable(path, f"HDF5 was still at it after {seconds * WAITING} s") from None
        if not said:
            raise _unreadable(path, _end(child.exit_code(), seconds))
        fcntl.fcntl(result, fcntl.F_ADD_SEALS, _SEALS)
        offset, length = (int(part) for part in said.split()) if _WHERE.fullmatch(said) else (0, 0)
        if not 0 < length <= MAX_HEADER_BYTES:
            raise _unreadable(path, NONSENSE)
        return os.pread(result.fileno(), length, offset)

    def _ready(self) -> Child:
        if self._child is None:
            self._child = start()
            if not self._child.receive(START_SECONDS):
                raise UserError(
                    f"the process that reads HDF5 files does not start (exit code {self._child.exit_code()}): "
                    "free some memory, or run python -c 'import h5py' for the reason"
                )
        return self._child


def _unreadable(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is not a readable HDF5 file: {reason}; get a fresh copy or make it again")


def _end(code: int | None, seconds: int) -> str:
    if code is None:
        return NONSENSE
    if code == -signal.SIGXCPU:
        return f"HDF5 was still at it after {seconds} s of processor time"
    if code == -signal.SIGKILL:
        return "its reading was killed, as happens where memory runs out"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
    return f"HDF5 crashed on it ({name})"


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Turn what the system lacks for reading the file into a UserError."""
    try:
        yield
    except MemoryError as error:
        wrong = "reading it takes more memory than there is, or than its datasets need"
        raise UserError(f"{path}: {wrong}; free some, or get a fresh copy") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {printable(str(error))}; end other programs, and try again") from error


def _checked(path: Path, header: bytes, checked: Callable[[Any], Answer]) -> Answer:
    try:
        answer = json.loads(header)
        if "error" in answer:
            raise UserError(printable(str(answer["error"]), MAX_ERROR_CHARACTERS))
        if "memory" in answer:
            raise MemoryError("there")
        return checked(answer)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise _unreadable(path, NONSENSE) from error


def _described(kind: Any, shape: Any, offset: Any, band: Any) -> Described:
    dtype = np.dtype(str(kind))
    numbers = (*shape, band, 0 if offset is None else offset)
    if dtype.kind not in "iuf" or dtype.itemsize > 8 or not (dtype.isnative or offset is not None):
        raise ValueError("no plain numbers")
    if not all(type(number) is int and number >= 0 for number in numbers) or not band:
        raise ValueError("no shape")
    return Described(tuple(shape), dtype, offset, band)


def _array(kind: np.dtype, shape: Any, offset: Any, most: int, result: int) -> np.ndarray:
    """Map numbers from the shared memory; changes to them stay in this process."""
    if kind.kind not in "iuf" or kind.itemsize > 8 or not kind.isnative:
        raise ValueError("no plain numbers")
    if not all(type(number) is int and number >= 0 for number in (*shape, offset)):
        raise ValueError("no shape")
    if offset % mmap.ALLOCATIONGRANULARITY:
        raise ValueError("no place for an array")
    count = math.prod(shape)
    if count * kind.itemsize > most:
        raise ValueError("more than there is")
    if not count:
        return np.empty(shape, kind)
    mapped = mmap.mmap(result, count * kind.itemsize, access=mmap.ACCESS_COPY, offset=offset)
    return np.frombuffer(mapped, kind).reshape(shape)


def _attribute(value: Any) -> Attribute:
    if isinstance(value, list) and all(type(item) in (int, float) for item in value):
        return value
    if type(value) not in (str, int, float):
        raise TypeError("neither text nor a number")
    return value
