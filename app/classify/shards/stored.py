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
    size, mtime_ns: of the file.
    offset: bytes of the file or of its content before the numbers. zipped: whether it is a gzip file.
    dataset: its name in an HDF5 file. band: how many rows a chunk of that has, 0 without chunks.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    size: int
    mtime_ns: int
    offset: int
    zipped: bool = False
    dataset: str = ""
    band: int = 0

    @property
    def form(self) -> Literal["plain", "gzip", "chunks"]:
        """``plain`` numbers of the file, those of a gzip file's content, or an HDF5 dataset in chunks."""
        return "gzip" if self.zipped else "chunks" if self.band else "plain"

    @property
    def row_bytes(self) -> int:
        """Bytes of one item of the first dimension."""
        return prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.shape[0] * self.row_bytes
