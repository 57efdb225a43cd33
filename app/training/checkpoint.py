"""Define a training job and its progress between two epochs; write and read both as checkpoints.

A checkpoint is settings and progress in HDF5, atomic, verified by a hash. Settings and some figures are JSON in an
attribute, the header. Every value is checked when read, as options are.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.files import hdf5_process
from app.files.checks import BadValueError, object_check, parse_json, text_check
from app.files.hdf5 import ReadRequest, build_hdf5_bytes, content_hash
from app.files.reading import may_exist, read_file
from app.files.writing import replace_atomically
from app.layers import Linear
from app.network.toml import parse_network
from app.training.gradients import Arrays
from app.training.model import Model, make_training_model
from app.training.optimisers import OPTIMISERS, Slots
from app.training.request import KEPT_CHECK
from app.training.settings import SETTINGS, WORKERS, Settings


class EpochResult(Frozen):
    """The figures of one epoch.

    loss, accuracy: means over the augmented training images, while the weights changed. validation_loss (without
    smoothing), validation_accuracy: means over the validation images, after the epoch.
    """

    loss: float
    accuracy: float
    validation_loss: float
    validation_accuracy: float
    seconds: float

    def describe(self, epoch: int, epochs: int) -> str:
        """Return one line with the epoch's losses, accuracies and seconds."""
        return (
            f"epoch {epoch}/{epochs}  loss {self.loss:.4f}, accuracy {self.accuracy:.2%}; "
            f"validation {self.validation_loss:.4f}, {self.validation_accuracy:.2%}; {self.seconds:.1f} s"
        )


class Progress(Frozen):
    """The state after ``len(history)`` epochs.

    slots: the optimiser's state. best: parameters after ``best_epoch``, which had the best validation accuracy.
    workers, trained_on: number of processes that shared the batches of the last epoch, and their device; another number
    or device rounds sums differently. options: those that --resume need not repeat. There is no random state: random
    numbers depend only on seed, epoch and image.
    """

    parameters: Arrays
    slots: Slots
    best: Arrays
    best_epoch: int  # counted from 1; 0: before the first
    history: tuple[EpochResult, ...] = ()
    workers: int = 1
    trained_on: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def best_accuracy(self) -> float:
        """Return the validation accuracy of ``best``; -1, below any accuracy, before the first epoch."""
        return self.history[self.best_epoch - 1].validation_accuracy if self.best_epoch else -1.0


class TrainingJob(Frozen):
    """A training that continues from ``progress``. It can be pickled, for other processes.

    images: (N, C, H, W) uint8. labels: (N,) uint8. device: ``cuda`` or ``cpu``. teacher: parameters of
    the network that it learns from besides the labels, or None.
    """

    settings: Settings
    model: Model
    images: np.ndarray
    labels: np.ndarray
    progress: Progress
    device: str
    teacher: Arrays | None = None


SCHEMA = 5
SUFFIX = ".checkpoint"
MAX_BYTES = 1 << 30
Stamp = tuple[int, int, int] | None
KIND = "lenet5-inference training checkpoint"
COLUMNS = len(dataclasses.fields(EpochResult))


# The fields of ``Progress`` in the header, besides the settings.
_FIGURES = {
    "best_epoch": SETTINGS["epochs"].check,
    "workers": WORKERS.check,
    "trained_on": text_check(),
    "options": KEPT_CHECK,
}
_HEADER = object_check(
    {"settings": object_check({name: setting.check for name, setting in SETTINGS.items()}), **_FIGURES}
)


def header_json(settings: Settings, progress: Mapping[str, Any]) -> str:
    """Return a checkpoint's header as JSON, for ``parse_header``. progress: values of ``Progress`` by field name."""
    values = {"settings": vars(settings), **{name: progress[name] for name in _FIGURES}}
    return json.dumps(values, ensure_ascii=False)  # shorter without escapes: HDF5 limits attributes


def parse_header(content: str) -> tuple[Settings, Model, dict[str, Any]]:
    """Return the settings in a checkpoint's header, the model that they train, and values of ``Progress`` by name.

    Raises BadValueError for every value that ``train`` would refuse as an option.
    """
    values = _HEADER(parse_json(content))
    chosen: dict[str, Any] = values.pop("settings")
    settings = Settings(**{**chosen, "dropout": tuple(chosen["dropout"]), "biases": tuple(chosen["biases"])})
    try:
        network = parse_network(settings.definition, "its network")
        model = make_training_model(network, settings.biases)
    except UserError as error:
        raise BadValueError(str(error)) from error
    if network.name != settings.network:
        raise BadValueError("its network has another name")
    _check_header_consistency(settings, model, values)
    return settings, model, values


def _check_header_consistency(settings: Settings, model: Model, values: Mapping[str, Any]) -> None:
    linear = {layer.name for layer in model.layers if isinstance(layer, Linear)}
    dropped, biases = [name for name, _ in settings.dropout], settings.biases
    reasons = {
        "more held out than there are images": settings.validation >= settings.images,
        "best_epoch after the last": values["best_epoch"] > settings.epochs,
        "more workers than images of a batch": values["workers"]
        > min(settings.batch, settings.images - settings.validation),
        "dropout of layers that the network has not, or not in order": not set(dropped) <= linear
        or dropped != sorted(set(dropped)),
        "biases of layers that the network has not": len(set(biases)) < len(biases)
        or not {f"{name}_bias" for name in biases} <= model.shapes.keys(),
        "no bias in a layer that must have one": any(
            getattr(layer, "bias", None) and layer.name not in biases for layer in model.layers
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise BadValueError(reason)


def checkpoint_path(output: Path) -> Path:
    """Return the path of the checkpoint for a training that writes its weights to ``output``."""
    return output.with_name(f"{output.name}{SUFFIX}")


def file_stamp(path: Path) -> Stamp:
    """Return inode, size and modification time of the file, to detect changes; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def save_checkpoint(path: Path, settings: Settings, progress: Progress) -> None:
    """Write a checkpoint atomically. Raises UserError."""
    head = header_json(settings, vars(progress))
    rows = [tuple(vars(result).values()) for result in progress.history]  # columns in the order of EpochResult's fields
    arrays = {"history": np.array(rows, np.float64).reshape(-1, COLUMNS)}
    for part, own in {"parameter": progress.parameters, "best": progress.best, **progress.slots}.items():
        arrays |= {f"{part}_{name}": array for name, array in own.items()}
    attributes: dict[str, str | int | float] = {"kind": KIND, "schema": SCHEMA, "head": head}
    content = build_hdf5_bytes(arrays, {**attributes, "sha256": content_hash(arrays, head)})
    with replace_atomically(path) as temporary:
        temporary.write_bytes(content)


class Checkpoint(Frozen):
    """The checked content of a checkpoint. stamp: ``file_stamp`` of the file before it was read."""

    path: Path
    stamp: Stamp
    settings: Settings
    model: Model
    progress: Progress


def load_checkpoint(path: Path) -> Checkpoint:
    """Return the content of a checkpoint, whose file is opened only once.

    Raises UserError if the file is missing, damaged, inconsistent or no checkpoint.
    """
    if not may_exist(path):
        raise UserError(f"{path} does not exist; check the name (a finished training leaves no checkpoint)")
    before = file_stamp(path)
    content = read_file(path, MAX_BYTES)
    with hdf5_process.Reader() as reader:
        words = reader.read(path, content, ReadRequest((), ("kind", "schema", "head", "sha256"), 0))
        if words.attributes.get("kind") != KIND:
            raise UserError(f"{path} is not a checkpoint of a training: name one that train left ({SUFFIX})")
        if words.attributes.get("schema") != SCHEMA:
            raise UserError(f"{path} is a checkpoint of another version of this program: train the network again")
        try:
            head = str(words.attributes.get("head"))
            settings, model, values = parse_header(head)
            limits = array_size_limits(settings, model)
            # Arrays are uncompressed; a small file must not claim large arrays by giving one array several names.
            if sum(limits.values()) - limits["history"] > len(content):
                raise BadValueError("it is too small for its network")
            if set(words.names) != limits.keys():
                raise BadValueError("its arrays are not those of its network")
            arrays = reader.read(path, content, ReadRequest(tuple(limits), (), sum(limits.values()))).arrays
            if words.attributes.get("sha256") != content_hash(arrays, head):
                raise BadValueError("its hash differs")
            return Checkpoint(path, before, settings, model, restore_progress(settings, model, values, arrays))
        except BadValueError as error:
            text = f"{path} is a damaged checkpoint ({error}): take another copy, or train the network again"
            raise UserError(text) from error


def array_size_limits(settings: Settings, model: Model) -> dict[str, int]:
    """Return the maximum size in bytes of each array in a checkpoint, by name."""
    parts = ("parameter", "best", *OPTIMISERS[settings.optimiser].slots)
    sizes = {f"{part}_{name}": 4 * prod(shape) for part in parts for name, shape in model.shapes.items()}
    return {**sizes, "history": 8 * COLUMNS * settings.epochs}


def restore_progress(settings: Settings, model: Model, values: Mapping[str, Any], arrays: Arrays) -> Progress:
    """Return a ``Progress`` from the header's values and the arrays. Raises BadValueError if they are inconsistent."""
    slots, best_epoch = OPTIMISERS[settings.optimiser].slots, values["best_epoch"]
    parameters, best, *own = (_arrays_of_part(part, model, arrays) for part in ("parameter", "best", *slots))
    if "square" in slots and any((array < 0).any() for array in own[slots.index("square")].values()):
        raise BadValueError("a running mean of squared gradients is negative")
    history = arrays["history"]
    if history.dtype != np.float64 or history.ndim != 2 or history.shape[1] != COLUMNS:
        raise BadValueError("its history has the wrong type")
    epochs, accuracies = len(history), history[:, [1, 3]]
    if not (np.isfinite(history).all() and (history >= 0).all() and (accuracies <= 1).all()):
        raise BadValueError("its history has impossible figures")
    if not 1 <= epochs <= settings.epochs or history[:, 3].argmax() + 1 != best_epoch:
        raise BadValueError("its history is not that of its best epoch")
    if best_epoch == epochs and any(not np.array_equal(best[name], parameters[name]) for name in best):
        raise BadValueError("its best parameters are not those of the best epoch")
    results = tuple(EpochResult(*map(float, row)) for row in history)
    return Progress(parameters, dict(zip(slots, own, strict=True)), best, history=results, **values)


def _arrays_of_part(part: str, model: Model, arrays: Arrays) -> Arrays:
    found = {name: arrays[f"{part}_{name}"] for name in model.shapes}
    for name, array in found.items():
        if array.shape != model.shapes[name] or array.dtype != np.float32:
            raise BadValueError(f"{part}_{name} has another shape or type than its network has")
        if not np.isfinite(array).all():
            raise BadValueError(f"{part}_{name} contains NaN or infinite values")
    return found
