"""What tests of training share: images that are easily learned, settings, a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from app.networks import NETWORKS
from app.training.checkpoint import save_checkpoint
from app.training.engine import empty_slots
from app.training.model import training_model
from app.training.progress import EpochResult, Progress
from app.training.recipes import RECIPES, Settings
from data_tools.idx import write_idx

Train = Callable[..., tuple[int, str, str]]
OWN = ["--data", "images", "--labels", "labels", "--batch", "16", "--validation", "8"]


def write_images(directory: Path) -> None:
    """``images`` and ``labels``: 60 of three kinds that are easily told apart."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 60).astype(np.uint8)
    images = rng.integers(0, 100, (60, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[8 * label : 8 * label + 8] += 150
    write_idx(directory / "images", images)
    write_idx(directory / "labels", labels)


def some_settings(**changes: Any) -> Settings:
    values = {**vars(RECIPES["mlp"]), "network": "mlp", "seed": 1, "images": 60, "validation": 8, "data": ""}
    return Settings(**{**values, **changes})


def unfinished(path: Path) -> None:
    """A checkpoint as it is after one epoch."""
    settings = some_settings()
    model = training_model(NETWORKS["mlp"], settings.biases)
    parameters = model.initial(1)
    history = (EpochResult(1.0, 0.5, 1.0, 0.5, 1.0),)
    save_checkpoint(path, settings, Progress(parameters, empty_slots(settings, parameters), parameters, 1, history))
