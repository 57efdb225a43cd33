"""Describe an array in a file."""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Stored:
    """An array in a file, C-contiguous. Frozen and picklable: other processes read the file by it.

    path: absolute. name: what errors call the array. shape: (N, ...). dtype: in the file's byte order.
    form: ``plain`` numbers of the file, ``gzip`` for those of a gzip file's content, ``chunks`` for an HDF5 dataset in
    chunks. offset: bytes of the file or of its content before the numbers. band: how many rows a chunk has.
    size, mtime_ns: of the file.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    form: Literal["plain", "gzip", "chunks"]
    size: int
    mtime_ns: int
    offset: int = 0
    dataset: str = ""
    band: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one item of the first dimension."""
        return prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.shape[0] * self.row_bytes
