"""The learning curve of a training as a picture."""

from __future__ import annotations

from pathlib import Path

from app.figures import figure_of, save
from app.training.progress import Progress
from app.training.recipes import Settings


def draw(settings: Settings, progress: Progress, folder: Path) -> Path:
    """Write learning_curve_NAME.png: loss and accuracy by epoch. Returns its path; raises UserError."""
    figure, (losses, accuracies) = figure_of(11, 4.5, 2)
    epochs = range(1, len(progress.history) + 1)
    losses.plot(epochs, [result.loss for result in progress.history], ".-", label="training (augmented)")
    losses.plot(epochs, [result.validation_loss for result in progress.history], ".-", label="validation")
    losses.set_ylabel("loss")
    accuracies.plot(epochs, [result.accuracy for result in progress.history], ".-", label="training (augmented)")
    accuracies.plot(epochs, [result.validation_accuracy for result in progress.history], ".-", label="validation")
    accuracies.axvline(progress.best_epoch, color="grey", linestyle=":", label=f"best epoch, {progress.best_epoch}")
    accuracies.set_ylabel("accuracy")
    for axis in (losses, accuracies):
        axis.set_xlabel("epoch")
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(f"{settings.network}, seed {settings.seed}, {settings.images - settings.validation:,} images")
    return save(figure, folder / f"learning_curve_{settings.network}.png")
