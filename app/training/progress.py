"""Define a training job, and its state between two epochs: what a checkpoint stores besides the settings."""

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from app.base.frozen import Frozen
from app.training.gradients import Arrays
from app.training.model import Model
from app.training.optimisers import Slots
from app.training.settings import Settings


class EpochResult(Frozen):
    """The figures of one epoch.

    loss, accuracy: of the augmented training images, while the weights changed. validation_loss (without smoothing),
    validation_accuracy: of the validation images, after the epoch.
    """

    loss: float
    accuracy: float
    validation_loss: float
    validation_accuracy: float
    seconds: float

    def describe(self, epoch: int, epochs: int) -> str:
        """Return one line with the epoch's losses, accuracies and seconds."""
        return (
            f"epoch {epoch}/{epochs}  loss {self.loss:.4f}, accuracy {self.accuracy:.2%}; "
            f"validation {self.validation_loss:.4f}, {self.validation_accuracy:.2%}; {self.seconds:.1f} s"
        )


class Progress(Frozen):
    """The state after ``len(history)`` epochs.

    best: parameters after ``best_epoch``, the most accurate on validation. workers, trained_on: number of processes
    that shared the batches of the last epoch, and their device; other numbers round sums differently. options: options
    that --resume need not repeat. There is no random state: random numbers depend only on seed, epoch and image.
    """

    parameters: Arrays
    slots: Slots
    best: Arrays
    best_epoch: int  # counted from 1; 0: before the first
    history: tuple[EpochResult, ...] = ()
    workers: int = 1
    trained_on: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def best_accuracy(self) -> float:
        """Return the validation accuracy of ``best``; -1 before the first epoch, because an epoch may have 0."""
        return self.history[self.best_epoch - 1].validation_accuracy if self.best_epoch else -1.0


class TrainingJob(Frozen):
    """A training to continue from ``progress``; picklable, for other processes.

    images: (N, C, H, W) uint8. labels: (N,) uint8. device: ``cuda`` or ``cpu``.
    """

    settings: Settings
    model: Model
    images: np.ndarray
    labels: np.ndarray
    progress: Progress
    device: str
