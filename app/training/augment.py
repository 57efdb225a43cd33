"""Augmentation: each image shifted by whole pixels, zeros moving in, and flipped half of the time."""

from __future__ import annotations

import numpy as np

from app.training.random_bits import Use, random_bits, whole


def augmented(images: np.ndarray, items: np.ndarray, *, seed: int, epoch: int, shift: int, flip: bool) -> np.ndarray:
    """(B, C, H, W) of any type → the same, altered. What happens to an image depends on seed, epoch and item alone.

    items: (B,) the images' places in the training set; shift: the most pixels, in either direction of each axis.
    """
    if not (shift or flip):
        return images
    bits = random_bits(seed, Use.AUGMENT, items, 3, epoch=epoch)
    rows = whole(bits[:, 0:1], 2 * shift + 1) + np.arange(images.shape[2])
    columns = whole(bits[:, 1:2], 2 * shift + 1) + np.arange(images.shape[3])
    if flip:
        columns = np.where(whole(bits[:, 2:3], 2) == 1, columns[:, ::-1], columns)
    padded = np.pad(images, ((0, 0), (0, 0), (shift, shift), (shift, shift))).transpose(0, 2, 3, 1)
    image = np.arange(len(images))[:, None, None]
    return padded[image, rows[:, :, None], columns[:, None, :]].transpose(0, 3, 1, 2)
