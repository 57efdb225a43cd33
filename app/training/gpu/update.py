"""The optimisers' step on the device: one launch over all parameters, and one for the L2 part of the loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from app.cuda.memory import device_array
from app.kernels.function import training_kernel
from app.kernels.variant import BLOCK, tiles
from app.training.gpu.arena import Layout
from app.training.optimisers import AdamW, Optimiser, Sgd


class Update:
    """What ``add_l2`` and ``Optimiser.update`` do, on arenas of parameters, gradients and slots."""

    def __init__(self, arch: str, places: Layout, optimiser: Optimiser, l2: float) -> None:
        self._layout, self._optimiser, self._l2 = places, optimiser, l2
        self._blocks = tiles(places.size, BLOCK)
        name = {AdamW: "adamw", Sgd: "sgd"}[type(optimiser)]
        self._function = training_kernel(name, {"HAS_L2": int(l2 > 0)}, arch, threads=BLOCK)
        self._squares = device_array(self._blocks, "float64") if l2 else None
        self._penalty = training_kernel("penalty", {}, arch, threads=BLOCK) if l2 else None

    def __call__(
        self,
        stream: Any,
        parameters: Any,
        gradients: Any,
        slots: list[Any],
        penalty: Any,
        *,
        step: int,
        rate: float,
        momentum: float,
    ) -> None:
        """One step, in place. penalty: (1,) float64, the L2 part of the loss, if there is one. step: counted from 1."""
        keep = 1 - rate * self._optimiser.weight_decay
        sizes = np.int32(self._layout.weights), np.int32(self._layout.size)
        scalars = self._scalars(step, rate, momentum)
        self._function(
            stream,
            (self._blocks, 1, 1),
            *(parameters, gradients, self._squares, *sizes, np.float32(self._l2), np.float32(keep)),
            *(*slots, *map(np.float32, scalars)),
        )
        if self._penalty is not None:
            half = np.float64(self._l2 / 2)
            self._penalty(stream, (1, 1, 1), self._squares, penalty, np.int32(self._blocks), half)

    def _scalars(self, step: int, rate: float, momentum: float) -> tuple[float, ...]:
        """As the kernel takes them: in float64 so far, as the references compute them."""
        if not isinstance(self._optimiser, AdamW):
            return momentum, rate
        beta2, epsilon = self._optimiser.beta2, self._optimiser.epsilon
        root_scale = (1 - beta2**step) ** 0.5
        return momentum, 1 - momentum, beta2, 1 - beta2, root_scale, epsilon, rate / (1 - momentum**step)
