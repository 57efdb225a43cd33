"""``main.py train``: train a network, and write its weights with what they promise."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from app import figures
from app.cuda import device
from app.errors import UserError
from app.interrupts import deferred_interrupts, exit_on_interrupt
from app.network.accuracy import correct_counts
from app.network.graph import build
from app.network.reference import compute_reference
from app.network.weights import Weights, load_weights, rounded, save_weights
from app.report import write_json
from app.training import curve, loop
from app.training.checkpoint import save_checkpoint
from app.training.job import Job, memory_errors
from app.training.model import INPUT_SCALE
from app.training.progress import Progress
from app.training.task import Task, choose
from app.training.typed import typed
from app.training.workers import check_workers, team_of

SCHEMA = "lenet5-inference/train/1"
CPU = "the CPU with NumPy"


def train(options: argparse.Namespace) -> int:
    """Train as the options say; prints a line an epoch. Returns the exit code, raises UserError."""
    with exit_on_interrupt():
        kind, why_not = device.choose(options.device)
        task = choose(options, kind)
        if options.plot is not None:
            figures.prepare(options.plot)
        workers = options.workers or task.progress.workers
        check_workers(workers, task.settings, kind)
        where = device.describe_gpu()["name"] if kind == "cuda" else CPU
    with task.places.claimed():
        progress = task.progress
        say: Callable[[str], object] = (lambda text: None) if options.json == "-" else tqdm.write
        slowly = "" if kind == "cuda" else f", slowly ({why_not})" if why_not else ", slowly"
        say(f"training {task.settings.network} on {where}{slowly}: {task.settings.describe()}")
        if progress.trained_on not in ("", where):
            say(
                f"note: {options.resume} comes from {progress.trained_on}: gone on elsewhere, the last bits will differ"
            )
        if task.again:
            words = " ".join(typed(name, value) for name, value in task.again.items())
            say(f"note: as {options.resume} was begun: {words}")
        if options.resume is not None and workers != progress.workers:
            say(f"note: {options.resume} comes from {progress.workers} workers; with {workers} bits may differ")
        progress = replace(progress, workers=workers, trained_on=where)
        _run(options, task, progress, kind, say)
    return 0


def _run(options: argparse.Namespace, task: Task, progress: Progress, kind: str, say: Callable[[str], object]) -> None:
    """All epochs that are left, and what comes of them. Raises UserError, with what to do about the checkpoint."""
    try:
        progress = _epochs(task, progress, kind, say)
        with memory_errors(task.settings):
            _finish(options, task, progress, say)
    except loop.DivergedError as error:
        kept = task.places.checkpoint
        remove = f"remove {kept}, which holds the last whole epoch, and " if kept.exists() else ""
        raise UserError(f"{error}: {remove}train again with a smaller --rate") from error
    except UserError as error:
        raise UserError(f"{error}{_resumable(task)}") from error
    except KeyboardInterrupt:
        if not task.places.checkpoint.exists():
            raise
        raise UserError(f"interrupted{_resumable(task)}") from None
    task.places.checkpoint.unlink(missing_ok=True)  # last: until all is written, it alone has every epoch's figures


def _epochs(task: Task, progress: Progress, kind: str, say: Callable[[str], object]) -> Progress:
    """All that are left, with a checkpoint after each."""
    settings = task.settings
    images = settings.images - settings.validation
    job = Job(settings, task.model, task.images, task.labels, progress, kind)
    with (
        deferred_interrupts() as check_interrupt,
        team_of(progress.workers, job, lambda: _resumable(task)) as team,
        job.engine(team, check_interrupt) as engine,
    ):
        while len(progress.history) < settings.epochs:
            epoch = len(progress.history) + 1
            name = f"epoch {epoch}/{settings.epochs}"
            with tqdm(total=images, desc=name, unit="im", leave=False, disable=not sys.stderr.isatty()) as bar:

                def after_batches(count: int, loss: float, accuracy: float, bar: Any = bar) -> None:
                    check_interrupt()
                    bar.set_postfix(loss=f"{loss:.3f}", accuracy=f"{accuracy:.1%}", refresh=False)
                    bar.update(count)

                progress = loop.run_epoch(engine, settings, progress, after_batches)
                loop.check_sense(progress, task.labels, task.model.classes)
            save_checkpoint(task.places.checkpoint, settings, progress)
            say(progress.history[-1].describe(epoch, settings.epochs))
            check_interrupt()
    return progress


def _resumable(task: Task) -> str:
    """What to add where a training ends before its time."""
    path = task.places.checkpoint
    return f"; {path} holds the last whole epoch: go on with {task.places.go_on()}" if path.exists() else ""


def _finish(options: argparse.Namespace, task: Task, progress: Progress, say: Callable[[str], object]) -> None:
    """Write everything, and say so."""
    weights = _write(task, progress)
    say(f"wrote {task.places.output}: epoch {progress.best_epoch}, {progress.best_accuracy:.2%} on validation")
    promise = ", ".join(f"{correct:,} / {count:,}" for count, correct in weights.expected_correct.items())
    if promise:
        say(f"correct on the test images: {promise}")
    if options.plot is not None:
        say(f"drew {curve.draw(task.settings, progress, options.plot)}")
    if options.json is not None:
        write_json(_document(task, progress, weights), None if options.json == "-" else Path(options.json))


def _write(task: Task, progress: Progress) -> Weights:
    """The best epoch's weights; with Fashion-MNIST, after counting what they get right among its test images."""
    settings, network = task.settings, task.model.network
    best = rounded(progress.best, settings.storage)  # as they will be read back: what is promised is promised of these
    workers = f", {progress.workers} workers" if progress.workers > 1 else ""
    found = f"best epoch {progress.best_epoch}, {progress.best_accuracy:.4f} on those held out"
    recipe = f"{settings.describe()}{workers}; {found}"
    promise: dict[int, int] = {}
    if task.test is not None:
        images, truth = task.test
        graph = build(network, Weights(best, network.name, None, INPUT_SCALE, None, {}, "", task.places.output))
        promise = correct_counts(compute_reference(graph, images[:, None]).labels, truth)
    save_weights(
        task.places.output,
        best,
        network=network.name,
        classes=task.data.classes,
        input_scale=INPUT_SCALE,
        recipe=recipe,
        expected_correct=promise,
        storage=settings.storage,
        overwrite=task.places.overwrite,
    )
    return load_weights(task.places.output)


def _document(task: Task, progress: Progress, weights: Weights) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "settings": task.settings.as_dict(),
        "workers": progress.workers,
        "epochs": [vars(result) for result in progress.history],
        "best_epoch": progress.best_epoch,
        "weights": {"path": str(task.places.output), "sha256": weights.sha256},
        "test_correct": {str(count): correct for count, correct in weights.expected_correct.items()},
    }
