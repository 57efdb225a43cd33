"""Checkpoints: a training's settings and progress in HDF5, whole or not at all, and known by their own hash."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.errors import UserError
from app.files import present, read_file
from app.hdf5 import Contents, Wanted, content_hash, file_image, read_untrusted
from app.paths import replacing
from app.training.gradients import Arrays
from app.training.model import Model
from app.training.optimisers import OPTIMISERS
from app.training.progress import EpochResult, Progress
from app.training.recipes import Settings

SCHEMA = 2
SUFFIX = ".checkpoint"
MAX_BYTES = 1 << 30
Stamp = tuple[int, int, int] | None
KIND = "lenet5-inference training checkpoint"


def checkpoint_path(output: Path) -> Path:
    """Where a training that will write ``output`` keeps its checkpoint."""
    return output.with_name(f"{output.name}{SUFFIX}")


def stamp(path: Path) -> Stamp:
    """What changes when the file does; None if it cannot be found."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def save_checkpoint(path: Path, settings: Settings, progress: Progress) -> None:
    """Write it, atomically. Raises UserError."""
    arrays = {f"parameter_{name}": array for name, array in progress.parameters.items()}
    arrays |= {f"best_{name}": array for name, array in progress.best.items()}
    for slot, own in progress.slots.items():
        arrays |= {f"{slot}_{name}": array for name, array in own.items()}
    arrays["history"] = progress.history_array()
    values = {name: getattr(progress, name) for name in ("best_epoch", "workers", "trained_on")}
    head = json.dumps({"settings": settings.as_dict(), **values})
    attributes: dict[str, str | int | float] = {"kind": KIND, "schema": SCHEMA, "head": head}
    content = file_image(arrays, {**attributes, "sha256": content_hash(arrays, head)})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@dataclass(frozen=True)
class Checkpoint:
    """What was read, and found to be whole. stamp: of the file, before. workers, trained_on: as in ``Progress``."""

    path: Path
    stamp: Stamp
    settings: Settings
    best_epoch: int
    workers: int
    trained_on: str
    arrays: Arrays

    @property
    def ended(self) -> bool:
        """Whether no epoch is left."""
        return len(self.arrays["history"]) == self.settings.epochs

    def progress(self, model: Model) -> Progress:
        """How far the training came. Raises UserError if it is not of this model."""
        slots = {slot: self._part(slot, model) for slot in OPTIMISERS[self.settings.optimiser].slots}
        history = tuple(EpochResult(*map(float, row)) for row in self.arrays["history"])
        parameters, best = self._part("parameter", model), self._part("best", model)
        return Progress(parameters, slots, best, self.best_epoch, history, self.workers, self.trained_on)

    def _part(self, prefix: str, model: Model) -> Arrays:
        found = {name: self.arrays.get(f"{prefix}_{name}") for name in model.shapes}
        if any(array is None or array.shape != model.shapes[name] for name, array in found.items()):
            raise UserError(f"{self.path} does not fit network {model.network.name} as it is here: train it again")
        return {name: array.astype(np.float32, copy=False) for name, array in found.items() if array is not None}


def load_checkpoint(path: Path) -> Checkpoint:
    """Read it, once. Raises UserError for everything that can be wrong with it."""
    if not present(path):
        raise UserError(f"{path} does not exist; check the name (a training that has ended leaves no checkpoint)")
    before = stamp(path)
    wanted = Wanted(None, ("kind", "schema", "head", "sha256"), MAX_BYTES)
    found = read_untrusted(path, read_file(path, MAX_BYTES), wanted)
    if found.attributes.get("kind") != KIND:
        raise UserError(f"{path} is not a checkpoint of a training: name one that train left ({SUFFIX})")
    if found.attributes.get("schema") != SCHEMA:
        raise UserError(f"{path} is a checkpoint of another version of this program: train the network again")
    try:
        return _checked(path, before, found)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is a damaged checkpoint: take another copy, or train the network again") from error


def _checked(path: Path, before: Stamp, found: Contents) -> Checkpoint:
    """Raises anything but UserError for what does not hold together."""
    arrays, head = found.arrays, found.attributes.get("head")
    if not isinstance(head, str) or found.attributes.get("sha256") != content_hash(arrays, head):
        raise ValueError("its hash differs")
    values = json.loads(head)
    settings = Settings.from_dict(values["settings"])
    best_epoch, workers = int(values["best_epoch"]), int(values["workers"])
    epochs, columns = arrays["history"].shape
    if columns != 5 or not 1 <= best_epoch <= epochs <= settings.epochs or settings.optimiser not in OPTIMISERS:
        raise ValueError("its figures contradict each other")
    if workers < 1:
        raise ValueError("nobody trained it")
    return Checkpoint(path, before, settings, best_epoch, workers, str(values["trained_on"]), arrays)
