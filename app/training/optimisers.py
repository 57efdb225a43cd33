"""Define optimisers, and the one-cycle schedule of learning rate and momentum."""

from abc import ABC, abstractmethod
from math import cos, pi
from typing import ClassVar, NamedTuple

import numpy as np

from app.base.frozen import Frozen
from app.training.gradients import Arrays
from app.training.settings import Settings

Slots = dict[str, Arrays]  # slot → parameter → array
WARM_UP = 0.3  # share of the steps
START_DIVISOR, END_DIVISOR = 25, 25e4  # divisors of the peak rate at the start and at the end
MOMENTUM_LOW, MOMENTUM_HIGH = 0.85, 0.95


class ScheduleStep(NamedTuple):
    """The learning rate and momentum of one update. number: counted from 1."""

    number: int
    rate: float
    momentum: float


class Optimiser(Frozen, ABC):
    """An update rule. weight_decay: each update shrinks weights, but not biases, by the share rate · weight_decay.

    keep_zeros: weights that are zero, but not biases, stay zero. slots: names of its states, an array per parameter.
    """

    weight_decay: float = 0.0
    keep_zeros: bool = False
    slots: ClassVar[tuple[str, ...]]

    def update(self, parameters: Arrays, gradients: Arrays, slots: Slots, step: ScheduleStep) -> None:
        """Update parameters and slots, the optimiser's state, in place."""
        for name, parameter in parameters.items():
            is_weight = not name.endswith("_bias")
            if self.weight_decay and is_weight:
                parameter *= 1 - step.rate * self.weight_decay
            own = [slots[slot][name] for slot in self.slots]
            change = self._compute_update(gradients[name], own, step)
            parameter -= np.where(parameter == 0, 0, change) if self.keep_zeros and is_weight else change

    @abstractmethod
    def _compute_update(self, gradient: np.ndarray, slots: list[np.ndarray], step: ScheduleStep) -> np.ndarray:
        """Update the slots in place; return the amount to subtract from the parameter."""


class Sgd(Optimiser):
    """Stochastic gradient descent with momentum: v ← momentum · v + g; w ← w - rate · v."""

    slots: ClassVar[tuple[str, ...]] = ("velocity",)

    def _compute_update(self, gradient: np.ndarray, slots: list[np.ndarray], step: ScheduleStep) -> np.ndarray:
        (velocity,) = slots
        velocity *= step.momentum
        velocity += gradient
        return step.rate * velocity


class AdamW(Optimiser):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019). The schedule's momentum is β₁."""

    beta2: float = 0.999
    epsilon: float = 1e-8
    slots: ClassVar[tuple[str, ...]] = ("mean", "square")

    def _compute_update(self, gradient: np.ndarray, slots: list[np.ndarray], step: ScheduleStep) -> np.ndarray:
        (number, rate, momentum), (mean, square) = step, slots
        mean *= momentum
        mean += (1 - momentum) * gradient
        square *= self.beta2
        square += (1 - self.beta2) * (gradient * gradient)
        root = np.sqrt(square) / (1 - self.beta2**number) ** 0.5 + self.epsilon
        return (rate / (1 - momentum**number)) * mean / root


OPTIMISERS: dict[str, type[Optimiser]] = {"adamw": AdamW, "sgd": Sgd}


def build_optimiser(settings: Settings) -> Optimiser:
    """Return the optimiser of a training."""
    return OPTIMISERS[settings.optimiser](settings.weight_decay, bool(settings.start))


def one_cycle_schedule(step: int, steps: int, peak: float) -> ScheduleStep:
    """Return rate and momentum of a step: the rate rises to ``peak`` and falls to nearly 0; momentum does the reverse.

    step: from 0 to ``steps`` - 1. Both follow cosines, as in L. N. Smith's "1cycle" (2018) and, with its defaults, in
    PyTorch's OneCycleLR.
    """
    top, last = max(WARM_UP * steps - 1, 0.0), steps - 1
    if step < top:
        share = _cosine_ramp(step / top)
        low = peak / START_DIVISOR
        return ScheduleStep(
            step + 1, low + (peak - low) * share, MOMENTUM_HIGH + (MOMENTUM_LOW - MOMENTUM_HIGH) * share
        )
    share = _cosine_ramp((step - top) / (last - top)) if last > top else 0.0
    rate = peak + (peak / END_DIVISOR - peak) * share
    return ScheduleStep(step + 1, rate, MOMENTUM_LOW + (MOMENTUM_HIGH - MOMENTUM_LOW) * share)


def _cosine_ramp(share: float) -> float:
    return (1 - cos(pi * share)) / 2
