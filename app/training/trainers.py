"""Make the trainer of each process of a training, and report a lack of memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.base.errors import UserError
from app.cuda.device import gpu_errors
from app.training.cpu_trainer import CpuTrainer, cpu_pool
from app.training.loop import Trainer
from app.training.progress import Job
from app.training.settings import Settings
from app.training.team import Team


@contextmanager
def trainer_of(job: Job, team: Team, check_interrupt: Callable[[], object]) -> Iterator[Trainer]:
    """Yield this member's trainer, in the state of the job's progress.

    check_interrupt: called now and then, from any thread; an exception from it ends the training. GPU errors within the
    block, and too little memory there or here, become UserErrors.
    """
    if job.device == "cpu":
        with memory_errors(job.settings), cpu_pool(team.size) as pool:
            yield CpuTrainer(job, pool, team, check_interrupt)
        return
    from app.cuda.memory import DeviceMemoryError
    from app.training.gpu.trainer import GpuTrainer

    with gpu_errors():
        try:
            yield GpuTrainer(job, team)
        except DeviceMemoryError:
            remedy = "choose a smaller --batch-size, or use --device cpu"
            raise UserError(_too_little("the GPU", job.settings, remedy)) from None


@contextmanager
def memory_errors(settings: Settings) -> Iterator[None]:
    """Turn a MemoryError within the block into a UserError."""
    try:
        yield
    except MemoryError:
        remedy = "raise the limit (ulimit -v), or choose a smaller --batch-size or network"
        raise UserError(_too_little("this machine", settings, remedy)) from None


def _too_little(where: str, settings: Settings, remedy: str) -> str:
    return (
        f"{where} has too little free memory to train {settings.network} with batches of {settings.batch:,}: "
        f"free some, {remedy}"
    )
