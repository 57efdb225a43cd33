"""Grey and colour images: which dimension of an array or a file holds the channels."""

from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.network.limits import CHANNELS
from data_tools.idx import Allocate, pageable, read_idx

RANKS = (3, 4)  # of an IDX file of images


def channels_first(x: np.ndarray, name: str) -> np.ndarray:
    """Return a view (N, C, H, W) of images (N, H, W, C) or (N, C, H, W), whose channels are 1 (grey) or 3 (colour).

    Raises UserError, which calls the array ``name``, see ``channel_dimension``.
    """
    return x if channel_dimension(x.shape, name) == 1 else x.transpose(0, 3, 1, 2)


def channel_dimension(shape: tuple[int, ...], name: str) -> int:
    """Return which dimension of images of this shape holds the channels: the second (1) or the last (3).

    It is the one whose length is 1 or 3. Raises UserError, which calls the array ``name``, if neither is or both are.
    """
    wanted = "(N, H, W, C) or (N, C, H, W) with 1 or 3 channels C"
    if len(shape) != 4 or 0 in shape:
        raise UserError(f"{name} has shape {shape}; it must be {wanted} and at least one image")
    first, last = shape[1] in CHANNELS, shape[3] in CHANNELS
    if first and last:
        either = "its second dimension or its last may be the channels"
        raise UserError(f"{name} has shape {shape}; {either}: store images whose height and width are not 1 or 3")
    if not (first or last):
        raise UserError(f"{name} has shape {shape}; it must be {wanted}")
    return 1 if first else 3


def read_images(path: Path, allocate: Allocate = pageable) -> np.ndarray:
    """Read an IDX file of images, N x H x W or with channels, see ``channels_first``: (N, C, H, W) uint8, C-contiguous.

    allocate: memory for the images. Raises UserError.
    """
    stored = read_idx(path, RANKS, allocate=allocate)
    if stored.ndim == 3:
        return stored[:, None]
    images = channels_first(stored, str(path))
    if images.flags.c_contiguous:
        return images
    planes = allocate(images.size).reshape(images.shape)
    planes[...] = images
    return planes
