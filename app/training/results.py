"""Write the results of a training: weights with their accuracy, the learning curve, and the figures as JSON."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

from app.drawing import files, lines
from app.network.graph import build_graph
from app.network.reference import compute_reference
from app.network.verdicts import correct_counts
from app.network.weights import Weights, load_weights, round_to_storage, save_weights
from app.records import networks as records
from app.records.networks import Train
from app.terminal.output import write_json
from app.training.progress import Progress
from app.training.settings import Settings
from app.training.task import Task


def write_results(task: Task, progress: Progress, say: Callable[[str], object]) -> None:
    """Write all requested results and report them by ``say``. Raises UserError."""
    request = task.request
    weights = _write_weights(task, progress)
    say(f"wrote {task.places.output}: epoch {progress.best_epoch}, {progress.best_accuracy:.2%} on validation")
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

    def line(name: str, measure: str, colour: str, dashed: bool) -> lines.Line:
        points = [(epoch, getattr(result, measure)) for epoch, result in enumerate(progress.history, 1)]
        return lines.Line(name, colour, points, dashed)

    panels = [
        lines.Panel(
            measure,
            [
                line("training (augmented)", measure, "c2", dashed=True),
                line("validation", f"validation_{measure}", "c1", dashed=False),
            ],
        )
        for measure in ("loss", "accuracy")
    ]
    title = f"{settings.network}, seed {settings.seed}, {settings.images - settings.validation:,} images"
    chart = lines.draw_line_chart(
        title, "epoch", panels, mark=(progress.best_epoch, "best epoch"), name="learning-curve"
    )
    return files.save_chart(chart, folder / f"learning_curve_{settings.network}.svg")


def _write_weights(task: Task, progress: Progress) -> Weights:
    """Write the weights of the best epoch; return them.

    For Fashion-MNIST, this first counts the correct answers on its test images.
    """
    settings, network = task.job.settings, task.job.model.network
    best = round_to_storage(progress.best, settings.storage)  # as loaded later: promised counts are for these
    workers = f", {progress.workers} workers" if progress.workers > 1 else ""
    found = f"best epoch {progress.best_epoch}, {progress.best_accuracy:.4f} on those held out"
    recipe = f"{settings.describe()}{workers}; {found}"
    promise: dict[int, int] = {}
    if task.test is not None:
        images, truth = task.test
        graph = build_graph(network, Weights(best, network.name, task.places.output))
        promise = correct_counts(compute_reference(graph, images[:, None]).labels, truth)
    save_weights(
        task.places.output,
        best,
        network=network,
        classes=task.data.classes,
        recipe=recipe,
        expected_correct=promise,
        storage=settings.storage,
        overwrite=task.places.overwrite,
    )
    return load_weights(task.places.output)


def _result_document(task: Task, progress: Progress, weights: Weights) -> Train:
    return {
        "schema": "lenet5-inference/train/1",
        "settings": cast(records.Settings, vars(task.job.settings)),
        "workers": progress.workers,
        "epochs": [cast(records.Epoch, vars(result)) for result in progress.history],
        "best_epoch": progress.best_epoch,
        "weights": {"path": str(task.places.output), "sha256": weights.sha256},
        "test_correct": {str(count): correct for count, correct in weights.expected_correct.items()},
    }
