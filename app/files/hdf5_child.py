"""Read HDF5 files for another process, one request after another and within limits of memory."""

from __future__ import annotations

import json
import math
import mmap
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.base.processes import limit_resource
from app.files.child_process import answer_requests
from app.files.hdf5 import ReadRequest
from app.files.hdf5_strict import StrictFile, open_strict, read_contents

METADATA_BYTES = 256 << 20  # memory for everything except datasets: headers, names, the index of chunks
CHUNK_COPIES = 6  # copies of a chunk in memory: stored, inflated into a doubling buffer, unshuffled, in the array
IMAGE_COPIES = 3  # copies of a file in memory: this module's, HDF5's, and one more while HDF5 opens it


def main() -> None:
    """Answer requests until the socket closes. Each brings descriptors of the HDF5 file and of one for arrays."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer_requests(_answer_request)


def _answer_request(message: bytes, source: int, result: int) -> bytes:
    """Write the requested arrays to descriptor ``result``; return the rest of the answer as JSON. source: the file."""
    request = json.loads(message)
    size = os.fstat(source).st_size if request["in_memory"] else 0
    memory = _SharedMemoryFile(result, IMAGE_COPIES * size)
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit_resource(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + request["seconds"])
    answer: dict[str, Any]
    try:
        opened = mmap.mmap(source, size, prot=mmap.PROT_READ) if size else source
        with open_strict(Path(request["path"]), opened) as file:
            answer = _ANSWERS[request["what"]](file, request, memory)
    except UserError as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"memory": True}
    return json.dumps(answer).encode()


def _contents_reply(file: StrictFile, request: dict[str, Any], memory: _SharedMemoryFile) -> dict[str, Any]:
    found = read_contents(file, ReadRequest(**request["wanted"]), memory.allocate_array)
    arrays = zip(found.arrays.items(), memory.offsets, strict=True)
    described = [(name, array.dtype.str, array.shape, offset) for (name, array), offset in arrays]
    return {"names": found.names, "arrays": described, "attributes": found.attributes}


def _descriptions_reply(file: StrictFile, request: dict[str, Any], _: _SharedMemoryFile) -> dict[str, Any]:
    names = file.list_names()
    found = [(name, file.describe_dataset(name)) for name in request["datasets"] if name in names]
    return {"names": names, "datasets": [(name, one.dtype.str, one.shape, one.offset, one.band) for name, one in found]}


def _rows_reply(file: StrictFile, request: dict[str, Any], memory: _SharedMemoryFile) -> dict[str, Any]:
    array = file.read_rows(request["dataset"], request["first"], request["count"], memory.allocate_array)
    return {"rows": (array.dtype.str, array.shape, memory.offsets[0])}


_ANSWERS = {"contents": _contents_reply, "descriptions": _descriptions_reply, "rows": _rows_reply}


class _SharedMemoryFile:
    """A file in shared memory for arrays. Each array raises the memory limit of this process by its size.

    offsets: position of each array in bytes.
    """

    def __init__(self, descriptor: int, image: int) -> None:
        self._descriptor = descriptor
        self._allowed = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        self._end = 0
        self.offsets: list[int] = []
        self._raise_memory_limit(METADATA_BYTES + image)

    def allocate_array(self, shape: tuple[int, ...], kind: np.dtype, chunk: int) -> np.ndarray:
        """Return a new array of dtype ``kind`` within the file. chunk: bytes of a chunk, for the memory limit."""
        nbytes = math.prod(shape) * kind.itemsize
        self._raise_memory_limit(nbytes + CHUNK_COPIES * chunk)
        self.offsets.append(self._end)
        if not nbytes:
            return np.empty(shape, kind)
        start, step = self._end, mmap.ALLOCATIONGRANULARITY
        self._end += -(-nbytes // step) * step
        os.truncate(self._descriptor, self._end)
        return np.frombuffer(mmap.mmap(self._descriptor, nbytes, offset=start), kind).reshape(shape)

    def _raise_memory_limit(self, nbytes: int) -> None:
        self._allowed += nbytes
        limit_resource(resource.RLIMIT_AS, self._allowed)
