"""Train in epochs of minibatches, validate after each, and keep the best parameters."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from app.base.clock import Timer
from app.training.checkpoint import EpochResult, Progress
from app.training.gradients import Arrays
from app.training.model import Model
from app.training.optimisers import OPTIMISERS, Slots
from app.training.random_bits import RandomUse, random_order
from app.training.settings import Settings

# Called after one or more batches with their number of images, and with the epoch's loss and accuracy so far.
AfterBatches = Callable[[int, float, float], None]
FAR = 10  # diverged: loss above this many times that of guessing
GUESSING = 1.5  # diverged: accuracy below this many times the share of the most frequent label


class Trainer(Protocol):
    """Holds images, parameters and the optimiser's state; trains. batches_per_call: batches to pass to ``train``."""

    batches_per_call: int  # batches that ``train`` should get at a time

    def train(self, batches: Sequence[np.ndarray], epoch: int, step: int) -> list[tuple[float, int]]:
        """Compute the gradients of the mean loss of each batch and update the parameters once per batch.

        batches: for each batch, the indices of its images in the training set, (B,) integers. epoch: counted
        from 1. step: number of the first batch since the start of the training, counted from 0. Return the loss (with
        L2) and the number of correct answers of each batch, before its update.
        """

    def evaluate(self, items: np.ndarray) -> tuple[float, int]:
        """Return the mean loss and the number of correct answers of the images with indices ``items``, (n,) integers.

        Label smoothing, augmentation and dropout are off.
        """

    def state(self) -> tuple[Arrays, Slots]:
        """Return float32 copies of the parameters and of the optimiser's state (slot → parameter → array)."""


class DivergedError(Exception):
    """The loss is NaN, infinite or far above the loss of guessing. The text names epoch and batch."""


@lru_cache(1)  # called every epoch
def split_validation(settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Return sorted indices, (n,) int64, read-only, of the training and the validation images. The seed chooses."""
    mixed = random_order(settings.seed, RandomUse.SPLIT, np.arange(settings.images))
    parts = np.sort(mixed[settings.validation :]), np.sort(mixed[: settings.validation])
    for part in parts:
        part.flags.writeable = False
    return parts


def initial_progress(model: Model, settings: Settings) -> Progress:
    """Return the state before the first epoch: initial parameters, and an optimiser's state of zeros."""
    parameters = model.initial_parameters(settings.seed)
    names = OPTIMISERS[settings.optimiser].slots
    slots = {slot: {name: np.zeros_like(array) for name, array in parameters.items()} for slot in names}
    return Progress(parameters, slots, parameters, 0)


def run_epoch(trainer: Trainer, settings: Settings, progress: Progress, after_batches: AfterBatches) -> Progress:
    """Train one more epoch from ``progress``, calling ``after_batches``; return the new state. Raises DivergedError."""
    timer = Timer()
    epoch = len(progress.history) + 1
    training, held_out = split_validation(settings)
    shuffled = random_order(settings.seed, RandomUse.ORDER, training, epoch=epoch)
    step = (epoch - 1) * settings.batches_per_epoch
    loss_sum, correct, done = 0.0, 0, 0
    batches = [shuffled[at : at + settings.batch] for at in range(0, len(shuffled), settings.batch)]
    for at in range(0, len(batches), trainer.batches_per_call):
        group = batches[at : at + trainer.batches_per_call]
        for number, (loss, right) in enumerate(trainer.train(group, epoch, step + at)):
            if not math.isfinite(loss):
                raise DivergedError(f"the loss became {loss} in epoch {epoch}, batch {at + number + 1}")
            loss_sum += loss * len(group[number])
            correct += right
            done += len(group[number])
        after_batches(sum(map(len, group)), loss_sum / done, correct / done)
    validation_loss, right = trainer.evaluate(held_out)
    if not math.isfinite(validation_loss):
        raise DivergedError(f"the validation loss became {validation_loss} after epoch {epoch}")
    result = EpochResult(loss_sum / done, correct / done, validation_loss, right / len(held_out), timer.seconds)
    parameters, slots = trainer.state()
    if not all(np.isfinite(array).all() for part in (parameters, *slots.values()) for array in part.values()):
        raise DivergedError(f"parameters or optimiser overflowed in epoch {epoch}")
    after = replace(progress, parameters=parameters, slots=slots, history=(*progress.history, result))
    if result.validation_accuracy > progress.best_accuracy:
        return replace(after, best=parameters, best_epoch=epoch)
    return after


def check_beats_guessing(progress: Progress, labels: np.ndarray, classes: int) -> None:
    """Raise DivergedError if the last epoch's loss is far above guessing's and its accuracies are as low as guessing's.

    labels: of all images. The loss alone does not suffice: a network that memorises images may have a large one.
    """
    last, guess = progress.history[-1], math.log(classes)
    loss = max(last.loss, last.validation_loss)
    often = GUESSING * np.bincount(labels).max() / len(labels)
    if loss > FAR * guess and max(last.accuracy, last.validation_accuracy) <= often:
        raise DivergedError(
            f"the loss became {loss:.4g} in epoch {len(progress.history)} (guessing gives {guess:.2f}), "
            f"with {last.validation_accuracy:.1%} correct on validation"
        )
