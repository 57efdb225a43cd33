"""What the loop asks of an engine, which does training's arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from app.training.gradients import Arrays
from app.training.optimisers import OPTIMISERS, Slots
from app.training.settings import Settings


class Engine(Protocol):
    """Holds the images, the parameters and the optimiser's slots."""

    together: int  # batches: what it is best asked to do at once

    def train(self, batches: Sequence[np.ndarray], epoch: int, step: int) -> list[tuple[float, int]]:
        """For each batch, gradients of its mean loss and one update.

        batches: places in the training set; epoch: from 1; step: of the first batch, from 0 at the training's start.
        Returns for each batch its loss, L2 included, and its correct answers, before its update.
        """

    def evaluate(self, items: np.ndarray) -> tuple[float, int]:
        """Mean loss without smoothing and correct answers, nothing altered and nothing left out."""

    def state(self) -> tuple[Arrays, Slots]:
        """Copies of parameters and slots, float32."""


def empty_slots(settings: Settings, parameters: Mapping[str, np.ndarray]) -> Slots:
    """What the optimiser starts from."""
    names = OPTIMISERS[settings.optimiser].slots
    return {slot: {name: np.zeros_like(array) for name, array in parameters.items()} for slot in names}
