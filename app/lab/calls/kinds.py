"""Define the kinds of calls that are timed, by batch size, precision and location of the images; make the images."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from app.base.errors import UserError, choices_hint
from app.base.frozen import Frozen

NETWORK = "lenet5"
ORDINARY, PINNED, CARD = "ordinary array", "page-locked array", "PyTorch tensor on the card"
ARRAYS = 8  # different arrays, given in turn; of 10,000 images they exceed the card's L2 cache


class Kind(Frozen):
    """A kind of call of ``Classifier``. source: where the images lie.

    enqueues: whether the call returns labels on the GPU without waiting for them.
    """

    name: str
    images: int
    precision: str
    source: str
    resident: bool = False
    enqueues: bool = False

    @property
    def description(self) -> str:
        """Return what the call does: number and location of the images, and the kind of answer."""
        answer = "enqueue" if self.enqueues else "to a label" if self.images == 1 else "to labels"
        count = "1 image" if self.images == 1 else f"{self.images:,} images"
        return f"{count}, {self.source}, {answer}" + ", resident" * self.resident


KINDS = (
    Kind("1", 1, "fp16", ORDINARY),
    Kind("1-resident", 1, "fp16", ORDINARY, resident=True),
    Kind("1-fp32x", 1, "fp32x", ORDINARY),
    Kind("1-fp32x-resident", 1, "fp32x", ORDINARY, resident=True),
    Kind("100", 100, "fp16", ORDINARY),
    Kind("10000", 10_000, "fp16", ORDINARY),
    Kind("10000-fp32x", 10_000, "fp32x", ORDINARY),
    Kind("10000-pinned", 10_000, "fp16", PINNED),
    Kind("100-enqueue", 100, "fp16", CARD, enqueues=True),
    Kind("100-card", 100, "fp16", CARD),
)


def parse_kinds(only: str | None) -> list[Kind]:
    """Return the kinds that ``--only`` names, by default all. Raises UserError for an unknown name."""
    by_name = {kind.name: kind for kind in KINDS}
    names = [*by_name] if only is None else only.split(",")
    for name in names:
        if name not in by_name:
            raise UserError(f"--only {only}: no row is called '{name}': {choices_hint(name, by_name)}")
    return [by_name[name] for name in names]


def image_indices(kind: Kind, total: int) -> list[np.ndarray]:
    """Return, for each of the ``ARRAYS`` arrays, which of ``total`` images it has: (kind.images,) int64."""
    starts = (at * total // ARRAYS for at in range(ARRAYS))
    return [(start + np.arange(min(kind.images, total))) % total for start in starts]


def call_arrays(kind: Kind, images: np.ndarray, place: Callable[[np.ndarray], Any]) -> Sequence[Any]:
    """Return a kind's arrays, (N, H, W), or (H, W) for a single image. place: copies an array to the kind's memory."""
    found = (images[indices, 0] for indices in image_indices(kind, len(images)))
    return [place(array[0] if kind.images == 1 else array) for array in found]
