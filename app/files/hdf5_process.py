"""Read HDF5 files in another process and check its answers. (shipped.py reads files of a known hash in this process.)

HDF5 is not built for malicious files: a damaged file can crash the library, corrupt its memory or keep it busy for
ever. In such a case only the other process ends (hdf5_child.py). Either process checks every dataset before it reads it
(hdf5_strict.py). Modules import h5py only inside functions: a program that reads through the other process needs no
h5py.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from app.base.errors import UserError
from app.files.checks import (
    Check,
    choice_check,
    list_check,
    mapping_check,
    nullable_check,
    object_check,
    string,
    tuple_check,
    whole_number_check,
)
from app.files.child_process import Child, memory_file
from app.files.hdf5 import MAX_FILE_BYTES, Attribute, FileContents, ReadRequest, StoredDataset, printable_line
from app.files.hdf5_start import take_or_start_child
from app.files.reading import HDF5, open_regular

SECONDS = 10  # limit of processor time for a small file, which takes milliseconds
BYTES_A_SECOND = 4 << 20  # slowest accepted rate for a large file
WAITING = 6  # seconds of clock time allowed per second of processor time, because other programs may run
START_SECONDS = 120
NONSENSE = "HDF5 gives impossible values for it"
MAX_ERROR_CHARACTERS = 6000  # the path in an error may have 4,096

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def read_untrusted(path: Path, content: bytes | None, wanted: ReadRequest) -> FileContents:
    """Return the wanted parts of a file that may be damaged or malicious; another process reads it.

    content: the bytes of the file; None to read them from ``path``. Raises UserError for every fault of the file.
    """
    with Reader() as reader:
        return reader.read(path, content, wanted)


class Reader(AbstractContextManager["Reader"]):
    """Reads HDF5 files one by one in another process, which starts at the first file and ends with the ``with`` block.

    If a file crashes the process, a new one reads the next file. The process also ends with the thread that started it.
    Threads that share a reader wait for each other.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process at once, even during a request."""
        if self._child is not None:
            self._child.kill()
        self._child = None

    def read(self, path: Path, content: bytes | None, wanted: ReadRequest) -> FileContents:
        """Return the wanted parts of a file. content: its bytes; None to read them from ``path``. Raises UserError."""
        request = {"what": "contents", "in_memory": content is not None, "wanted": vars(wanted)}
        with (
            open_regular(path, MAX_FILE_BYTES, wanted.too_large) if content is None else memory_file(content) as source,
            self._request_answer(path, source, request, os.fstat(source.fileno()).st_size) as (answer, result),
        ):
            names, attributes = tuple(answer["names"]), answer["attributes"]
            arrays = {name: _map_shared_array(result, *parts) for name, *parts in answer["arrays"]}
            _require_as_requested(arrays.keys() <= set(names) and attributes.keys() <= set(wanted.attributes))
            _require_as_requested(sum(array.nbytes for array in arrays.values()) <= wanted.max_bytes)
            return FileContents(names, arrays, attributes)

    def describe_datasets(
        self, path: Path, source: BinaryIO, datasets: Sequence[str]
    ) -> tuple[list[str], dict[str, StoredDataset]]:
        """Return the names in the root of a file of any size, and how it stores each of ``datasets`` that exists.

        path: name of the file ``source`` in errors. Raises UserError for every fault of the file.
        """
        with self._request_answer(path, source, {"what": "descriptions", "datasets": datasets}, 0) as (answer, _):
            found = {
                name: StoredDataset(tuple(shape), np.dtype(kind), offset, band)
                for name, kind, shape, offset, band in answer["datasets"]
            }
            _require_as_requested(found.keys() <= set(datasets))
            _require_as_requested(all(one.dtype.isnative or one.offset is not None for one in found.values()))
            return answer["names"], found

    def read_rows(
        self, path: Path, source: BinaryIO, name: str, first: int, shape: tuple[int, ...], dtype: np.dtype
    ) -> np.ndarray:
        """Return N rows, from ``first`` on, of the root's dataset ``name``. shape: (N, …). Raises UserError."""
        request = {"what": "rows", "dataset": name, "first": first, "count": shape[0]}
        with self._request_answer(path, source, request, math.prod(shape) * dtype.itemsize) as (answer, result):
            array = _map_shared_array(result, *answer["rows"])
            _require_as_requested((array.dtype, array.shape) == (dtype, shape))
            return array

    @contextmanager
    def _request_answer(
        self, path: Path, source: BinaryIO, request: Mapping[str, Any], nbytes: int
    ) -> Iterator[tuple[Any, int]]:
        """Context manager: yield the checked answer about the file ``source``, and a descriptor of its arrays' file.

        path: of ``source``, for errors. nbytes: size of the answer, for the time limit. A ValueError in the block is
        reported as an impossible answer.
        """
        with self._lock, _report_resource_shortage(path), memory_file() as result:
            if os.pread(source.fileno(), len(HDF5), 0) != HDF5:
                raise UserError(
                    f"{path} is not an HDF5 file (its first bytes say so); name another file or make it again"
                )
            seconds = SECONDS + nbytes // BYTES_A_SECOND
            message = {"path": str(path), "in_memory": False, **request, "seconds": seconds}
            try:
                child = self._start_child_once()
                answer = child.send_request(json.dumps(message).encode(), [source, result], seconds * WAITING)
                if not answer:
                    raise _unreadable_error(path, _describe_child_failure(child.exit_code(), seconds))
            except TimeoutError:
                self.close()
                raise _unreadable_error(path, f"HDF5 was still at it after {seconds * WAITING} s") from None
            except BaseException:  # e.g. Ctrl-C while the process is working
                self.close()
                raise
            fcntl.fcntl(result, fcntl.F_ADD_SEALS, _SEALS)  # from here on, nobody can shorten the mapped memory
            try:
                found = json.loads(answer)
                if "error" in found:
                    raise UserError(printable_line(str(found["error"]), MAX_ERROR_CHARACTERS))
                if "memory" in found:
                    raise MemoryError("there")
                yield _ANSWERS[request["what"]](found), result.fileno()
            except (ValueError, TypeError, RecursionError) as error:
                raise _unreadable_error(path, NONSENSE) from error

    def _start_child_once(self) -> Child:
        if self._child is None:
            self._child = take_or_start_child()
            if not self._child.receive(START_SECONDS):
                raise UserError(
                    f"the process that reads HDF5 files does not start (exit code {self._child.exit_code()}): "
                    "free some memory, or run python -c 'import h5py' for the reason"
                )
        return self._child


def _unreadable_error(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is not a readable HDF5 file: {reason}; get a fresh copy or make it again")


def _describe_child_failure(code: int | None, seconds: int) -> str:
    if code is None:
        return NONSENSE
    if code == -signal.SIGXCPU:
        return f"HDF5 was still at it after {seconds} s of processor time"
    if code == -signal.SIGKILL:
        return "its reading was killed, as happens where memory runs out"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
    return f"HDF5 crashed on it ({name})"


@contextmanager
def _report_resource_shortage(path: Path) -> Iterator[None]:
    """In the ``with`` block, turn errors from a lack of memory or other resources into UserErrors on the file."""
    try:
        yield
    except MemoryError as error:
        wrong = "reading it takes more memory than there is, or than its datasets need"
        raise UserError(f"{path}: {wrong}; free some, or get a fresh copy") from error
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {printable_line(str(error))}; end other programs, and try again"
        ) from error


def _require_as_requested(holds: bool) -> None:
    if not holds:
        raise ValueError("nobody asked for this")


def _map_shared_array(result: int, kind: str, shape: list[int], offset: int) -> np.ndarray:
    """Map an array at byte ``offset`` of the file ``result``, copy-on-write. Raise ValueError beyond the file's end."""
    dtype, count = np.dtype(kind), math.prod(shape)
    if not dtype.isnative or offset % mmap.ALLOCATIONGRANULARITY:
        raise ValueError("no mapped numbers")
    if not count:
        return np.empty(shape, dtype)
    if offset + count * dtype.itemsize > os.fstat(result).st_size:
        raise ValueError("more than there is")
    mapped = mmap.mmap(result, count * dtype.itemsize, access=mmap.ACCESS_COPY, offset=offset)
    return np.frombuffer(mapped, dtype).reshape(shape)


def _check_attribute(value: Any) -> Attribute:
    if isinstance(value, list) and all(type(item) in (int, float) for item in value):
        return value
    if type(value) not in (str, int, float):
        raise TypeError("neither text nor a number")
    return value


_SIZE = whole_number_check(0, sys.maxsize)
_TYPE = choice_check(*(np.dtype(order + kind).str for kind in "bBhHiIqQefd" for order in "<>"))
_NAMES = list_check(string)
_SHAPE = list_check(_SIZE)
_ANSWERS: dict[str, Check] = {
    "contents": object_check(
        {
            "names": _NAMES,
            "arrays": list_check(tuple_check(string, _TYPE, _SHAPE, _SIZE)),
            "attributes": mapping_check(_check_attribute),
        }
    ),
    "descriptions": object_check(
        {
            "names": _NAMES,
            "datasets": list_check(
                tuple_check(string, _TYPE, _SHAPE, nullable_check(_SIZE), whole_number_check(1, sys.maxsize))
            ),
        }
    ),
    "rows": object_check({"rows": tuple_check(_TYPE, _SHAPE, _SIZE)}),
}
