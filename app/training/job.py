"""Everything that a process needs to take part in a training, and its engine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from app.cuda.device import gpu_errors
from app.errors import UserError
from app.training.cpu_engine import CpuEngine, cpu_pool
from app.training.loop import Engine, batches_an_epoch
from app.training.model import Model
from app.training.progress import Progress
from app.training.settings import Settings
from app.training.team import Team


@dataclass(frozen=True)
class Job:
    """A training that continues from ``progress``. Jobs are pickled for other processes.

    images: (N, C, H, W) uint8; labels: (N,) uint8; device: ``cuda`` or ``cpu``.
    """

    settings: Settings
    model: Model
    images: np.ndarray
    labels: np.ndarray
    progress: Progress
    device: str

    @contextmanager
    def engine(self, team: Team, check_interrupt: Callable[[], object]) -> Iterator[Engine]:
        """This member's engine, in the state of ``progress``.

        check_interrupt: called now and then, from any thread; what it raises ends the training. GPU errors within the
        block, and too little memory there or here, become UserErrors.
        """
        state = (self.progress.parameters, self.progress.slots)
        steps = self.settings.epochs * batches_an_epoch(self.settings)
        arguments = (self.model, self.settings, self.images, self.labels, state, steps)
        if self.device == "cpu":
            with memory_errors(self.settings), cpu_pool(team.size) as pool:
                yield CpuEngine(*arguments, pool, team, check_interrupt)
            return
        from app.cuda.memory import DeviceMemoryError
        from app.training.gpu.engine import GpuEngine

        with gpu_errors():
            try:
                yield GpuEngine(*arguments, team)
            except DeviceMemoryError:
                remedy = "choose a smaller --batch, or use --device cpu"
                raise UserError(_too_little("the GPU", self.settings, remedy)) from None


@contextmanager
def memory_errors(settings: Settings) -> Iterator[None]:
    """Turn a MemoryError within the block into a UserError."""
    try:
        yield
    except MemoryError:
        remedy = "raise the limit (ulimit -v), or choose a smaller --batch or network"
        raise UserError(_too_little("this machine", settings, remedy)) from None


def _too_little(where: str, settings: Settings, remedy: str) -> str:
    return (
        f"{where} has too little free memory to train {settings.network} with batches of {settings.batch:,}: "
        f"free some, {remedy}"
    )
