"""``main.py train``: train a network, and write its weights with what they promise."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from app import device, pictures
from app.errors import UserError
from app.interrupts import deferred_interrupts, exit_on_interrupt
from app.report import check_writable, write_json
from app.training import curve, loop
from app.training.checkpoint import load_progress, save_checkpoint
from app.training.choices import Task, choose
from app.training.cpu_engine import CpuEngine, cpu_pool
from app.training.engine import Engine
from app.training.progress import Progress
from app.weights import Weights, load_weights, save_weights
from data_tools.reference_labels import PROMISED_IMAGES, reference_results

CPU = "the CPU with NumPy"


def train(options: argparse.Namespace) -> int:
    """Train as the options say; prints a line an epoch. Returns the exit code, raises UserError."""
    if options.json not in (None, "-"):
        check_writable(Path(options.json))
    if options.plot is not None:
        pictures.prepare(options.plot)
    with exit_on_interrupt():
        kind, why_not = device.choose(options.device)
        task = choose(options)
        where = device.describe_gpu()["name"] if kind == "cuda" else CPU
    progress = (
        loop.start(task.model, task.settings) if options.resume is None else load_progress(options.resume, task.model)
    )
    say: Callable[[str], object] = (lambda text: None) if options.json == "-" else tqdm.write
    slowly = "" if kind == "cuda" else f", slowly ({why_not})" if why_not else ", slowly"
    say(f"training {task.settings.network} on {where}{slowly}: {task.settings.describe()}")
    if progress.trained_on not in ("", where):
        say(f"note: {options.resume} comes from {progress.trained_on}: gone on elsewhere, the last bits will differ")
    try:
        progress = _epochs(task, progress, where, say)
        weights = _write(task, progress)
    except loop.DivergedError as error:
        raise UserError(f"{error}: train again with a smaller --rate{_kept(task)}") from error
    except KeyboardInterrupt:
        if not task.checkpoint.exists():
            raise
        raise UserError(f"interrupted{_kept(task)}: go on with --resume {task.checkpoint}") from None
    task.checkpoint.unlink(missing_ok=True)
    promise = ", ".join(f"{correct:,} / {count:,}" for count, correct in weights.expected_correct.items())
    say(f"wrote {task.output}: epoch {progress.best_epoch}, {progress.best_accuracy:.2%} on validation")
    if promise:
        say(f"correct on the test images: {promise}")
    if options.plot is not None:
        say(f"drew {curve.draw(task.settings, progress, options.plot)}")
    if options.json is not None:
        write_json(_document(task, progress, weights), None if options.json == "-" else Path(options.json))
    return 0


@contextmanager
def _engine(task: Task, progress: Progress, where: str) -> Iterator[Engine]:
    """An engine that stands where ``progress`` does."""
    settings, state = task.settings, (progress.parameters, progress.slots)
    steps = settings.epochs * loop.batches_an_epoch(settings)
    arguments = (task.model, settings, task.images, task.labels, state, steps)
    if where == CPU:
        with cpu_pool() as pool:
            yield CpuEngine(*arguments, pool)
    else:
        with exit_on_interrupt():  # it loads CuPy
            from app.training.gpu.engine import gpu_engine
        with gpu_engine(*arguments) as engine:
            yield engine


def _epochs(task: Task, progress: Progress, where: str, say: Callable[[str], object]) -> Progress:
    """All that are left, with a checkpoint after each."""
    settings = task.settings
    images = settings.images - settings.validation
    with _engine(task, progress, where) as engine, deferred_interrupts() as check_interrupt:
        while len(progress.history) < settings.epochs:
            epoch = len(progress.history) + 1
            name = f"epoch {epoch}/{settings.epochs}"
            with tqdm(total=images, desc=name, unit="im", leave=False, disable=not sys.stderr.isatty()) as bar:

                def after_batches(count: int, loss: float, accuracy: float, bar: Any = bar) -> None:
                    check_interrupt()
                    bar.set_postfix(loss=f"{loss:.3f}", accuracy=f"{accuracy:.1%}", refresh=False)
                    bar.update(count)

                progress = replace(loop.run_epoch(engine, settings, progress, after_batches), trained_on=where)
            save_checkpoint(task.checkpoint, settings, progress)
            say(progress.history[-1].describe(epoch, settings.epochs))
            check_interrupt()
    return progress


def _kept(task: Task) -> str:
    return f"; {task.checkpoint} holds the last whole epoch" if task.checkpoint.exists() else ""


def _write(task: Task, progress: Progress) -> Weights:
    """The best epoch's weights; with Fashion-MNIST, after counting what they get right among its test images."""
    settings, best = task.settings, progress.best
    recipe = f"{settings.describe()}; best epoch {progress.best_epoch}, {progress.best_accuracy:.4f} on those held out"
    promise: dict[int, int] = {}
    if task.test is not None:
        images, truth = task.test
        weights = Weights(best, settings.network, task.data.classes, 1 / 255, recipe, {}, "", task.output)
        right = reference_results(weights, images)[0] == truth
        promise = {count: int(right[:count].sum()) for count in PROMISED_IMAGES}
    save_weights(
        task.output,
        best,
        network=settings.network,
        classes=task.data.classes,
        input_scale=1 / 255,
        recipe=recipe,
        expected_correct=promise,
    )
    return load_weights(task.output)


def _document(task: Task, progress: Progress, weights: Weights) -> dict[str, Any]:
    return {
        "settings": task.settings.as_dict(),
        "epochs": [vars(result) for result in progress.history],
        "best_epoch": progress.best_epoch,
        "weights": {"path": str(task.output), "sha256": weights.sha256},
        "test_correct": {str(count): correct for count, correct in weights.expected_correct.items()},
    }
