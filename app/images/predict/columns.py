"""The answers as columns, the same in every kind of file."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.images.predict.inputs import Part

Columns = dict[str, list[str] | np.ndarray]
"""Name → a value per image: path, number (int64), label (uint8), class, probability (float32) and so on."""


@dataclass(frozen=True)
class Layout:
    """Which columns there are. classes: names; None where the weights have none, there are no class columns then.

    top: the number of classes, the likeliest first; the second has the columns label_2, class_2 and probability_2.
    logits: with logit_0, logit_1 and so on. paths, numbers: with the file of each image, and its place in the file.
    """

    classes: Sequence[str] | None
    top: int
    logits: bool
    paths: bool
    numbers: bool

    def columns(self, part: Part, labels: np.ndarray, logits: np.ndarray, probabilities: np.ndarray) -> Columns:
        """Return the columns of a part. labels: (n,) uint8. logits, probabilities: (n, classes) float32."""
        found: Columns = {}
        if self.paths:
            found["path"] = part.paths
        if self.numbers:
            found["number"] = np.array(part.numbers, np.int64)
        ranked = likeliest(labels, logits, self.top)
        chances = np.take_along_axis(probabilities, ranked.astype(np.intp), axis=1)
        for rank in range(self.top):
            suffix = f"_{rank + 1}" if rank else ""
            found[f"label{suffix}"] = ranked[:, rank]
            if self.classes is not None:
                found[f"class{suffix}"] = [self.classes[label] for label in ranked[:, rank]]
            found[f"probability{suffix}"] = chances[:, rank]
        if self.logits:
            found |= {f"logit_{index}": column for index, column in enumerate(logits.T)}
        return found


def likeliest(labels: np.ndarray, logits: np.ndarray, top: int) -> np.ndarray:
    """Return the ``top`` likeliest classes of each image, (n, top) uint8: its label, then the others by their logits.

    Of equal ones the lower comes first.
    """
    others = np.arange(logits.shape[1]) != labels[:, None]
    return np.lexsort((-logits, others), axis=1)[:, :top].astype(np.uint8)
