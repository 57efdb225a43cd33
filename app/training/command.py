"""Run the command ``train``: train a network, with a checkpoint after each epoch."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from app.base.errors import UserError, escape_unprintable
from app.base.interrupts import deferred_interrupts, exit_on_interrupt
from app.cuda import device
from app.drawing import files
from app.terminal.text import paragraph, terminal_width
from app.training import loop
from app.training.checkpoint import save_checkpoint
from app.training.cpu_trainer import open_trainer, translate_memory_errors
from app.training.progress import Progress, TrainingJob
from app.training.request import TrainRequest
from app.training.results import write_results
from app.training.settings import option_text
from app.training.task import Task, load_task
from app.training.workers import check_workers, start_team

CPU = "the CPU with NumPy"


def train(request: TrainRequest) -> int:
    """Train the network, print a line per epoch and write the weights. Return 0. Raises UserError."""
    with exit_on_interrupt():
        kind, why_not = device.choose_device(request.device)
        task = load_task(request, kind)
        request, job = task.request, task.job
        settings, progress = job.settings, job.progress
        if request.plot is not None:
            files.create_chart_folder(request.plot)
        workers = request.workers or progress.workers
        check_workers(workers, settings, kind)
        card = device.describe_gpu() if kind == "cuda" else {"name": CPU}
        where, which = card["name"], device.format_bus_address(card, ", ") if workers == 1 else ""
    with task.places.lock_and_check():
        say: Callable[[str], object] = (lambda text: None) if request.json == "-" else _print_line
        slowly = "" if kind == "cuda" else f", slowly ({why_not})" if why_not else ", slowly"
        say(f"training {settings.network} on {which}{where}{slowly}: {settings.describe()}")
        source = request.resume
        if progress.trained_on not in ("", where):
            say(f"note: {source} comes from {progress.trained_on}: on another processor the last bits will differ")
        if task.again:
            words = " ".join(option_text(name, value) for name, value in task.again.items())
            say(f"note: {source} was started with {words}")
        if source is not None and workers != progress.workers:
            say(f"note: {source} comes from {progress.workers} workers; with {workers} bits may differ")
        _train_and_write(task, replace(job, progress=replace(progress, workers=workers, trained_on=where)), say)
    return 0


def _print_line(text: str) -> None:
    tqdm.write("\n".join(paragraph(escape_unprintable(text), terminal_width(), following="  ")))


def _train_and_write(task: Task, job: TrainingJob, say: Callable[[str], object]) -> None:
    """Train the remaining epochs and write the results. UserErrors say how to use the checkpoint."""
    try:
        progress = _train_epochs(task, job, say)
        with translate_memory_errors(job.settings):
            write_results(task, progress, say)
    except loop.DivergedError as error:
        kept = task.places.checkpoint
        remove = f"remove {kept}, which stores the last complete epoch, and " if kept.exists() else ""
        raise UserError(f"{error}: {remove}train again with a smaller --rate") from error
    except UserError as error:
        raise UserError(f"{error}{task.places.resume_hint()}") from error
    except KeyboardInterrupt:
        if not task.places.checkpoint.exists():
            raise
        raise UserError(f"interrupted{task.places.resume_hint()}") from None
    task.places.checkpoint.unlink(missing_ok=True)  # last: until then, only it holds every epoch's figures


def _train_epochs(task: Task, job: TrainingJob, say: Callable[[str], object]) -> Progress:
    """Train the remaining epochs, with a checkpoint after each; return the progress."""
    settings, progress = job.settings, job.progress
    images = settings.images - settings.validation
    with (
        deferred_interrupts() as check_interrupt,
        start_team(progress.workers, job, task.places.resume_hint) as team,
        open_trainer(job, team, check_interrupt) as trainer,
    ):
        while len(progress.history) < settings.epochs:
            epoch = len(progress.history) + 1
            name = f"epoch {epoch}/{settings.epochs}"
            with tqdm(total=images, desc=name, unit="im", leave=False, disable=not sys.stderr.isatty()) as bar:

                def update_progress_bar(count: int, loss: float, accuracy: float, bar: Any = bar) -> None:
                    check_interrupt()
                    bar.set_postfix(loss=f"{loss:.3f}", accuracy=f"{accuracy:.1%}", refresh=False)
                    bar.update(count)

                progress = loop.run_epoch(trainer, settings, progress, update_progress_bar)
                loop.check_beats_guessing(progress, job.labels, job.model.classes)
            save_checkpoint(task.places.checkpoint, settings, progress)
            say(progress.history[-1].describe(epoch, settings.epochs))
            check_interrupt()
    return progress
