"""Define a shard: the images of one file and their labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.classify.shards.reader import ShardReader
from app.classify.shards.sources import Stored
from data_tools.dataset import channel_dimension


class ShardError(UserError):
    """A shard was written meanwhile, or its labels cannot be read. Other shards are not affected."""


class Shard(Frozen):
    """The images of one file, and their labels if known. Frozen and picklable; ``open_shard`` makes it."""

    images: Stored
    truth: Stored | None

    @property
    def path(self) -> Path:
        """Return the absolute path of the images' file."""
        return self.images.path

    @property
    def count(self) -> int:
        """Return the number of images."""
        return self.images.shape[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of each image."""
        stored = self.images.shape
        if len(stored) == 3:
            return 1, stored[1], stored[2]
        first = channel_dimension(stored, self.images.name) == 1
        return (stored[1], stored[2], stored[3]) if first else (stored[3], stored[1], stored[2])

    @property
    def dtype(self) -> np.dtype:
        """Return the type of the images as read: uint8, or float32 in [0, 1] if the file contains floats.

        Floats stay floats even if all are k/255, which is known only at the end of the file.
        """
        return np.dtype(np.uint8 if self.images.dtype == np.uint8 else np.float32)

    @property
    def image_bytes(self) -> int:
        """Return the bytes per image as read."""
        channels, height, width = self.shape
        return channels * height * width * self.dtype.itemsize

    @property
    def sequential(self) -> bool:
        """Return whether the images can only be read in order, as in gzip files and HDF5 chunks."""
        return self.images.storage_form != "plain"

    @property
    def labelled(self) -> bool:
        """Return whether the true labels are known."""
        return self.truth is not None

    @property
    def labels_readable_by_piece(self) -> bool:
        """Return whether the labels of one piece can be read alone: they are uncompressed, or the shard is one piece.

        Compressed labels would have to be read from the beginning for each piece.
        """
        return self.truth is not None and (self.truth.storage_form == "plain" or self.sequential)

    def reader(self) -> ShardReader:
        """Open the files: ``with shard.reader() as reader: reader.read(first, out)``.

        Raises UserError if they cannot be opened or have changed in size.
        """
        return ShardReader(self.images, self.truth, self.shape, self.dtype)

    def check_unchanged(self) -> None:
        """Raise ShardError if a file of the shard was written or replaced after this machine opened it."""
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
