"""Define the options of ``train``; imports no NumPy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.cuda.cards import VARIABLE, device_number
from app.engine.request import data_dir_option, data_option, device_option
from app.files import checks
from app.files.checks import Check
from app.terminal.console import Switch
from app.terminal.options import option
from app.terminal.output import OVERWRITE
from app.training.settings import SETTINGS, WORKERS, Settings, parse_dropout

# Options that do not affect the learned weights. A checkpoint keeps them, so that ``--resume`` need not repeat them.
IMAGES = ("data", "labels", "data_dir")  # replaced together or not at all
OUTPUTS = ("plot", "json")
NOT_OPTIONS = ("data", "start", "teacher", "biases", "definition")  # the first three are hashes of named files
KEPT = (*IMAGES, "teacher", *OUTPUTS)
MAX_LENGTH = 2000
KEPT_CHECK: Check = checks.object_check({name: checks.text_check(MAX_LENGTH) for name in KEPT}, optional=KEPT)


def _setting_option(setting: str, help: str, group: str | None = None, **more: Any) -> Any:
    """Return the dataclass field of the option for a setting, a key of ``SETTINGS``. more: arguments of ``option``."""
    return option(help, group=group, **SETTINGS[setting].option, **more)


class TrainRequest(Frozen, kw_only=True):
    """Options of ``train``, None if not given. Raises UserError for an invalid dropout."""

    network: str | None = option(
        "network to train from scratch, or its .toml file; mlp_500 is a wider mlp", group="what", metavar="NAME"
    )
    resume: Path | None = option("checkpoint of an interrupted training to continue")
    start: Path | None = option(
        "weights file to start from instead of random weights; its weights that are zero stay zero", metavar="FILE"
    )
    teacher: Path | None = option(
        "weights file to learn from: nine tenths of the loss are the distance from its answers", metavar="FILE"
    )
    out: Path | None = option("weights file to write (default: NAME_trained.h5)", once="--output")
    overwrite: bool = option(OVERWRITE, False)
    device: str = device_option()
    workers: int | None = option(
        "number of processes that share each batch, one per GPU, or on the CPU's cores (default: 1; with --resume "
        "the number before)",
        **WORKERS.option,
    )
    images: int | None = _setting_option("images", "number of images to use (default: all 60,000)", "images")
    validation: int | None = _setting_option(
        "validation", "number of images to keep for choosing the best epoch (default: a twelfth)"
    )
    data_dir: Path | None = data_dir_option()
    data: Path | None = data_option()
    labels: Path | None = option("IDX file of the correct labels for --data")
    epochs: int | None = _setting_option(
        "epochs", "number of passes over the images", "how (default: the network's recipe)"
    )
    batch: int | None = _setting_option(
        "batch", "number of images between two updates of the weights", name="--batch-size", once="--batch"
    )
    seed: int | None = _setting_option("seed", "seed of all random numbers (default: 1)")
    optimiser: str | None = _setting_option("optimiser", "rule that updates the weights; sgd uses momentum")
    rate: float | None = _setting_option("rate", "highest learning rate, the peak of a one-cycle schedule")
    weight_decay: float | None = _setting_option(
        "weight_decay", "share of each weight that an update subtracts, times the rate"
    )
    l2: float | None = _setting_option("l2", "penalty in the loss: X/2 times the sum of the weights' squares")
    smoothing: float | None = _setting_option("smoothing", "label smoothing: share of a label spread over all classes")
    dropout: str | None = option("share of a layer's inputs to drop at random, or 'none'", metavar="LAYER=X,…")
    shift: int | None = _setting_option("shift", "largest random shift of an image, in pixels")
    flip: bool | None = option("flip half of the images at random, or no images", action=Switch)
    json: str | None = option(
        "also write settings and epochs to FILE as JSON; '-' prints only the JSON", group="output", metavar="FILE"
    )
    storage: str | None = _setting_option("storage", "number type of the weights in their file")
    plot: Path | None = option("draw the learning curve into DIR", metavar="DIR")

    def __post_init__(self) -> None:
        parse_dropout(self.dropout or "none")
        if self.resume is not None and self.start is not None:
            raise UserError("--resume continues from a checkpoint: leave out --start")
        if device_number(self.device) is not None and (self.workers or 1) > 1:
            raise UserError(
                f"--device {self.device} is one GPU, and --workers {self.workers} need one each: use --device cuda, "
                f"and choose the GPUs by {VARIABLE}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """Return the fields of ``Settings`` that were given, including ``network`` and ``images``."""
        names = [field.name for field in fields(Settings) if field.name not in NOT_OPTIONS]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return given | ({"dropout": parse_dropout(given["dropout"])} if "dropout" in given else {})

    def checkpoint_options(self) -> dict[str, str]:
        """Return option → absolute path, or ``-``, to store in the checkpoint; omit unprintable or very long paths."""
        given = {name: str(value) for name in KEPT if (value := getattr(self, name)) is not None}
        paths = {n: "-" if (n, path) == ("json", "-") else str(Path(path).absolute()) for n, path in given.items()}
        return {name: path for name, path in paths.items() if path.isprintable() and len(path) <= MAX_LENGTH}

    def fill_from_checkpoint(self, stored: Mapping[str, str]) -> tuple[TrainRequest, dict[str, str]]:
        """Return the request completed by options stored in a checkpoint, and the stored options that it used.

        Raises UserError if the stored JSON file exists: the author of a checkpoint must not choose which
        file is overwritten.
        """
        images = () if any(getattr(self, name) is not None for name in IMAGES) else IMAGES
        used = {
            name: stored[name]
            for name in (*images, "teacher", *OUTPUTS)
            if name in stored and getattr(self, name) is None
        }
        json = used.get("json", "-")
        if json != "-" and os.path.lexists(json):
            raise UserError(f"{json}, the --json of the checkpoint, exists: name a file for the figures with --json")
        values: dict[str, Any] = {name: value if name == "json" else Path(value) for name, value in used.items()}
        return replace(self, **values), used
