"""Provide common parts of tests of training: easily learned images, settings, a checkpoint, a training process."""

import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from app.network.definitions import MLP, Network
from app.network.toml import network_toml
from app.training.checkpoint import EpochResult, TrainingJob, save_checkpoint
from app.training.loop import initial_progress
from app.training.model import make_training_model
from app.training.settings import RECIPES, Settings
from data_tools.idx import write_idx
from tests.support.shell import started
from tests.support.shell import wait_for as wait_for

Train = Callable[..., tuple[int, str, str]]
Refused = Callable[[str | Sequence[str], str], None]
OWN = ["--data", "images", "--labels", "labels", "--batch-size", "16", "--validation", "8"]


def last_of_each(arguments: Sequence[str]) -> list[str]:
    """Return the options with only the last of each, because the command accepts each option once."""
    options: dict[str, list[str]] = {}
    for argument in arguments:
        if argument.startswith("--"):
            own = options[argument] = []
        own.append(argument)
    return [word for words in options.values() for word in words]


def write_images(directory: Path) -> None:
    """Write ``images`` and ``labels``: 60 images of three classes that are easy to distinguish."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 60).astype(np.uint8)
    images = rng.integers(0, 100, (60, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[8 * label : 8 * label + 8] += 150
    write_idx(directory / "images", images)
    write_idx(directory / "labels", labels)


def some_settings(**changes: Any) -> Settings:
    values = {**vars(RECIPES["mlp"]), "network": "mlp", "seed": 1, "images": 60, "validation": 8, "data": "0" * 64}
    return Settings(**{**values, "definition": network_toml(MLP), **changes})


def new_job(
    settings: Settings, images: Any = None, labels: Any = None, device: str = "cpu", network: Network = MLP
) -> TrainingJob:
    """Return a training job before its first epoch; without ``images``, all images are 0."""
    model = make_training_model(network, settings.biases)
    images = np.zeros((60, 1, 28, 28), np.uint8) if images is None else images
    labels = np.zeros(60, np.uint8) if labels is None else labels
    return TrainingJob(settings, model, images, labels, initial_progress(model, settings), device)


def unfinished(path: Path, loss: float = 1.0) -> None:
    """Write a checkpoint as after one epoch."""
    settings = some_settings()
    history = (EpochResult(loss, 0.5, 1.0, 0.5, 1.0),)
    progress = new_job(settings).progress
    save_checkpoint(path, settings, replace(progress, best_epoch=1, history=history))


def begin(place: Path, *options: str) -> subprocess.Popen:
    """Start an endless training with two processes in a separate session, as from a terminal."""
    own = ["--device", "cpu", "--network", "mlp", *OWN, "--epochs", "10000", "--workers", "2", *options]
    return started(place, "train", *last_of_each(own))


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    """Wait until all processes of the training have ended; return exit code, output and errors."""
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode, out, err


def workers_of(process: subprocess.Popen) -> list[int]:
    """Return the process ids of the training's workers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may have ended
            ours = f"\nPPid:\t{process.pid}\n" in (folder / "status").read_text()
            if ours and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found
