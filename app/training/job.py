"""What a process must know to take part in a training, and the engine that it then has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from app.training.cpu_engine import CpuEngine, cpu_pool
from app.training.engine import Engine
from app.training.loop import batches_an_epoch
from app.training.model import Model
from app.training.progress import Progress
from app.training.recipes import Settings
from app.training.team import Team


@dataclass(frozen=True)
class Job:
    """A training to go on with from ``progress``. It can be pickled, for other processes.

    images: (N, C, H, W) uint8; labels: (N,) uint8; device: ``cuda`` or ``cpu``.
    """

    settings: Settings
    model: Model
    images: np.ndarray
    labels: np.ndarray
    progress: Progress
    device: str

    @contextmanager
    def engine(self, team: Team) -> Iterator[Engine]:
        """The engine of this member of the team, standing where ``progress`` does."""
        state = (self.progress.parameters, self.progress.slots)
        steps = self.settings.epochs * batches_an_epoch(self.settings)
        arguments = (self.model, self.settings, self.images, self.labels, state, steps)
        if self.device == "cpu":
            with cpu_pool(team.size) as pool:
                yield CpuEngine(*arguments, pool, team)
        else:
            from app.training.gpu.engine import gpu_engine  # loads CuPy

            with gpu_engine(*arguments, team) as engine:
                yield engine
