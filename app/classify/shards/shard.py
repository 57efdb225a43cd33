"""Describe a shard: images of one file, and the labels that belong to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.classify.shards.reader import Reader
from app.classify.shards.sources import Stored
from data_tools.dataset import channel_dimension


class ShardError(UserError):
    """There are no results of this shard, as it was written meanwhile or its labels cannot be read; others can have."""


@dataclass(frozen=True)
class Shard:
    """The images of one file, and their labels if they are known. Frozen and picklable.

    ``open_shard`` makes it from the files' headers.
    """

    images: Stored
    truth: Stored | None

    @property
    def path(self) -> Path:
        """The file of the images, absolute."""
        return self.images.path

    @property
    def count(self) -> int:
        """How many images it has."""
        return self.images.shape[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        stored = self.images.shape
        if len(stored) == 3:
            return 1, stored[1], stored[2]
        first = channel_dimension(stored, self.images.name) == 1
        return (stored[1], stored[2], stored[3]) if first else (stored[3], stored[1], stored[2])

    @property
    def dtype(self) -> np.dtype:
        """What images are read as: uint8, or float32 in [0, 1] where the file has floats.

        Floats stay floats even if all are k/255: a stream cannot know that before its end.
        """
        return np.dtype(np.uint8 if self.images.dtype == np.uint8 else np.float32)

    @property
    def image_bytes(self) -> int:
        """Bytes of an image as it is read."""
        channels, height, width = self.shape
        return channels * height * width * self.dtype.itemsize

    @property
    def sequential(self) -> bool:
        """Whether the images can be read only from the first to the last: gzip files and chunks of HDF5."""
        return self.images.form != "plain"

    @property
    def labelled(self) -> bool:
        """Whether the true labels are known."""
        return self.truth is not None

    @property
    def labelled_by_piece(self) -> bool:
        """Whether labels of a piece can be read with it: they lie plainly in a file, or the shard is one piece.

        Compressed labels would have to be read from the beginning for each piece.
        """
        return self.truth is not None and (self.truth.form == "plain" or self.sequential)

    def reader(self) -> Reader:
        """Open the files for reading: ``with shard.reader() as reader: reader.read(first, out)``.

        Raises UserError if they cannot be opened or do not have the size that they had.
        """
        return Reader(self.images, self.truth, self.shape, self.dtype)

    def check_unchanged(self) -> None:
        """Raise ShardError if a file was written or replaced since this machine opened it."""
        for stored in (self.images, self.truth):
            if stored is None:
                continue
            try:
                status = stored.path.stat()
            except OSError as error:
                raise ShardError(f"{stored.path} is gone ({error.strerror}): put it back, and run again") from error
            if (status.st_size, status.st_mtime_ns) != (stored.size, stored.mtime_ns):
                written = f"{stored.path} was written during the run"
                raise ShardError(f"{written}: run again when nothing writes it")
