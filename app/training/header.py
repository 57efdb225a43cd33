"""What a checkpoint says in words: a training's settings and how far it came, as JSON, every value of it checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import UserError
from app.files.checks import BadValueError, Check, fields, flag, items, number, one_of, parsed_json, row, text, whole
from app.layers import Linear
from app.network.graph import find_network
from app.training import kept_options
from app.training.limits import NUMBERS, WHOLE, WORDS
from app.training.model import Model, training_model
from app.training.recipes import Settings


@dataclass(frozen=True)
class Header:
    """best_epoch, workers, trained_on, options: as in ``Progress``."""

    settings: Settings
    best_epoch: int
    workers: int
    trained_on: str
    options: Mapping[str, str]

    def text(self) -> str:
        """What ``parsed`` takes."""
        values = {**vars(self), "settings": self.settings.as_dict(), "options": dict(self.options)}
        return json.dumps(values, ensure_ascii=False)  # shorter: HDF5 limits attributes


def parsed(content: str) -> tuple[Header, Model]:
    """The header and the network that it describes. Raises BadValueError for anything that ``train`` would refuse."""
    values = _HEADER(parsed_json(content))
    chosen: dict[str, Any] = values.pop("settings")
    settings = Settings(**{**chosen, "dropout": tuple(chosen["dropout"]), "biases": tuple(chosen["biases"])})
    header = Header(settings, **values)
    try:
        model = training_model(find_network(settings.network), settings.biases)
    except UserError as error:
        raise BadValueError(str(error)) from error
    _check_together(header, model)
    return header, model


def _check_together(header: Header, model: Model) -> None:
    settings = header.settings
    linear = {layer.name for layer in model.layers if isinstance(layer, Linear)}
    dropped, biases = [name for name, _ in settings.dropout], settings.biases
    reasons = {
        "more held out than there are images": settings.validation >= settings.images,
        "best_epoch after the last": header.best_epoch > settings.epochs,
        "more workers than images of a batch": header.workers
        > min(settings.batch, settings.images - settings.validation),
        "dropout of layers that the network has not, or not in order": not set(dropped) <= linear
        or dropped != sorted(set(dropped)),
        "biases of layers that the network has not": len(set(biases)) < len(biases)
        or not {f"{name}_bias" for name in biases} <= model.shapes.keys(),
    }
    for reason, holds in reasons.items():
        if holds:
            raise BadValueError(reason)


def _share(value: Any) -> float:
    share = number(0, 1)(value)
    if share == 1:
        raise BadValueError("1 is not below 1")
    return share


def _digest(value: Any) -> str:
    if len(text()(value)) != 64 or not set(value) <= set("0123456789abcdef"):
        raise BadValueError("it is no SHA-256")
    return value


_SETTINGS: dict[str, Check] = {
    **{name: whole(*WHOLE[name]) for name in ("epochs", "batch", "images", "validation", "seed", "shift")},
    **{name: number(*limits) for name, limits in NUMBERS.items()},
    **{name: one_of(*words) for name, words in WORDS.items()},
    "dropout": items(row(text(), _share)),
    "flip": flag,
    "biases": items(text()),
    "network": text(),
    "data": _digest,
}
_HEADER = fields(
    {
        "settings": fields(_SETTINGS),
        "best_epoch": whole(*WHOLE["epochs"]),
        "workers": whole(*WHOLE["workers"]),
        "trained_on": text(),
        "options": kept_options.CHECK,
    }
)
