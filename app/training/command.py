"""Run the command ``train``: train a network, with a checkpoint after each epoch, and write the results."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from app.base.errors import UserError, escape_unprintable
from app.base.interrupts import deferred_interrupts, exit_on_interrupt
from app.cuda import device
from app.drawing import lines, svg
from app.network.graph import build_graph
from app.network.reference import compute_reference
from app.network.verdicts import correct_counts
from app.network.weights import Weights, load_weights, round_to_storage, save_weights
from app.records import networks as records
from app.records.networks import Train
from app.terminal.output import write_json
from app.terminal.text import paragraph, terminal_width
from app.training import loop
from app.training.checkpoint import Progress, TrainingJob, save_checkpoint
from app.training.cpu_trainer import open_trainer, translate_memory_errors
from app.training.request import TrainRequest
from app.training.settings import Settings, format_option
from app.training.task import TrainTask, load_task
from app.training.workers import check_workers, start_team


def save_training_results(task: TrainTask, progress: Progress, say: Callable[[str], object]) -> None:
    """Write all requested result files; call ``say`` with a line about each. Raises UserError."""
    request = task.request
    weights = _write_weights(task, progress)
    say(f"wrote {task.files.output}: epoch {progress.best_epoch}, {progress.best_accuracy:.2%} on validation")
    promise = ", ".join(f"{correct:,} / {count:,}" for count, correct in weights.expected_correct.items())
    if promise:
        say(f"correct on the test images: {promise}")
    if request.plot is not None:
        say(f"drew {draw_learning_curve(task.job.settings, progress, request.plot)}")
    if request.json is not None:
        path = None if request.json == "-" else Path(request.json)
        write_json(_result_document(task, progress, weights), path, overwrite=request.overwrite)


def draw_learning_curve(settings: Settings, progress: Progress, folder: Path) -> Path:
    """Draw loss and accuracy by epoch to learning_curve_NAME.svg; return its path. Raises UserError."""

    def make_line(name: str, measure: str, colour: str, dashed: bool) -> lines.Line:
        points = [(epoch, getattr(result, measure)) for epoch, result in enumerate(progress.history, 1)]
        return lines.Line(name, colour, points, dashed)

    panels = [
        lines.Panel(
            measure,
            [
                make_line("training (augmented)", measure, "c2", dashed=True),
                make_line("validation", f"validation_{measure}", "c1", dashed=False),
            ],
        )
        for measure in ("loss", "accuracy")
    ]
    title = f"{settings.network}, seed {settings.seed}, {settings.images - settings.validation:,} images"
    chart = lines.draw_line_chart(
        title, "epoch", panels, mark=(progress.best_epoch, "best epoch"), name="learning-curve"
    )
    return svg.save_chart(chart, folder / f"learning_curve_{settings.network}.svg")


def _write_weights(task: TrainTask, progress: Progress) -> Weights:
    """Write the weights of the best epoch; return them.

    For Fashion-MNIST, this first counts the correct answers on its test images.
    """
    settings, network = task.job.settings, task.job.model.network
    best = round_to_storage(progress.best, settings.storage)  # as they will be loaded: the promises hold for these
    workers = f", {progress.workers} workers" if progress.workers > 1 else ""
    found = f"best epoch {progress.best_epoch}, {progress.best_accuracy:.4f} on those held out"
    recipe = f"{settings.describe()}{workers}; {found}"
    promise: dict[int, int] = {}
    if task.test is not None:
        images, truth = task.test
        graph = build_graph(network, Weights(best, network.name, task.files.output))
        promise = correct_counts(compute_reference(graph, images[:, None]).labels, truth)
    save_weights(
        task.files.output,
        best,
        network=network,
        classes=task.data.classes,
        recipe=recipe,
        expected_correct=promise,
        storage=settings.storage,
        overwrite=task.files.overwrite,
    )
    return load_weights(task.files.output)


def _result_document(task: TrainTask, progress: Progress, weights: Weights) -> Train:
    return {
        "schema": "lenet5-inference/train/1",
        "settings": cast(records.Settings, vars(task.job.settings)),
        "workers": progress.workers,
        "epochs": [cast(records.Epoch, vars(result)) for result in progress.history],
        "best_epoch": progress.best_epoch,
        "weights": {"path": str(task.files.output), "sha256": weights.sha256},
        "test_correct": {str(count): correct for count, correct in weights.expected_correct.items()},
    }


CPU = "the CPU with NumPy"


def train(request: TrainRequest) -> int:
    """Train the network, print a line per epoch and write the weights. Return 0. Raises UserError."""
    with exit_on_interrupt():
        kind, why_not = device.choose_device(request.device)
        task = load_task(request, kind)
        request, job = task.request, task.job
        settings, progress = job.settings, job.progress
        if request.plot is not None:
            svg.create_chart_folder(request.plot)
        workers = request.workers or progress.workers
        check_workers(workers, settings, kind)
        card = device.describe_gpu() if kind == "cuda" else {"name": CPU}
        where, which = card["name"], device.format_bus_address(card, ", ") if workers == 1 else ""
    with task.files.lock_and_check():
        say: Callable[[str], object] = (lambda text: None) if request.json == "-" else _print_line
        slowly = "" if kind == "cuda" else f", slowly ({why_not})" if why_not else ", slowly"
        say(f"training {settings.network} on {which}{where}{slowly}: {settings.describe()}")
        source = request.resume
        if progress.trained_on not in ("", where):
            say(f"note: {source} comes from {progress.trained_on}: on another processor the last bits will differ")
        if task.restored:
            words = " ".join(format_option(name, value) for name, value in task.restored.items())
            say(f"note: {source} was started with {words}")
        if source is not None and workers != progress.workers:
            say(f"note: {source} comes from {progress.workers} workers; with {workers} bits may differ")
        _train_and_write(task, replace(job, progress=replace(progress, workers=workers, trained_on=where)), say)
    return 0


def _print_line(text: str) -> None:
    tqdm.write("\n".join(paragraph(escape_unprintable(text), terminal_width(), following="  ")))


def _train_and_write(task: TrainTask, job: TrainingJob, say: Callable[[str], object]) -> None:
    """Train the remaining epochs and write the results. Its UserErrors say how to use the checkpoint."""
    try:
        progress = _train_epochs(task, job, say)
        with translate_memory_errors(job.settings):
            save_training_results(task, progress, say)
    except loop.DivergedError as error:
        kept = task.files.checkpoint
        remove = f"remove {kept}, which stores the last complete epoch, and " if kept.exists() else ""
        raise UserError(f"{error}: {remove}train again with a smaller --rate") from error
    except UserError as error:
        raise UserError(f"{error}{task.files.resume_hint()}") from error
    except KeyboardInterrupt:
        if not task.files.checkpoint.exists():
            raise
        raise UserError(f"interrupted{task.files.resume_hint()}") from None
    task.files.checkpoint.unlink(missing_ok=True)  # last: until then, only it holds every epoch's figures


def _train_epochs(task: TrainTask, job: TrainingJob, say: Callable[[str], object]) -> Progress:
    """Train the remaining epochs, with a checkpoint after each; return the progress."""
    settings, progress = job.settings, job.progress
    images = settings.images - settings.validation
    with (
        deferred_interrupts() as check_interrupt,
        start_team(progress.workers, job, task.files.resume_hint) as team,
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
            save_checkpoint(task.files.checkpoint, settings, progress)
            say(progress.history[-1].describe(epoch, settings.epochs))
            check_interrupt()
    return progress
