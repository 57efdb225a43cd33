"""Options that decide nothing of what is learned, kept in the checkpoint so that ``--resume`` need not repeat them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from app.errors import UserError
from app.files.checks import Check, fields, text

IMAGES = ("data", "labels", "data_dir")  # go together
OUTPUTS = ("plot", "json")
MAX_LENGTH = 2000
CHECK: Check = fields({name: text(MAX_LENGTH) for name in (*IMAGES, *OUTPUTS)}, optional=(*IMAGES, *OUTPUTS))


def of(options: argparse.Namespace) -> dict[str, str]:
    """Option → its path, absolute, or '-'; only those that were given. One that is not printable is not kept."""
    given = {name: str(value) for name in (*IMAGES, *OUTPUTS) if (value := getattr(options, name)) is not None}
    paths = {name: "-" if (name, path) == ("json", "-") else str(Path(path).absolute()) for name, path in given.items()}
    return {name: path for name, path in paths.items() if path.isprintable() and len(path) <= MAX_LENGTH}


def fill_in(options: argparse.Namespace, kept: Mapping[str, str]) -> dict[str, str]:
    """Give ``options`` what they do not say; returns that.

    Raises UserError for a JSON file that exists: whoever wrote the checkpoint must not choose what is overwritten.
    """
    images = [] if any(getattr(options, name) is not None for name in IMAGES) else IMAGES
    again = {name: kept[name] for name in (*images, *OUTPUTS) if name in kept and getattr(options, name) is None}
    json = again.get("json", "-")
    if json != "-" and os.path.lexists(json):
        raise UserError(f"{json}, the --json of the checkpoint, exists: name a file for the figures with --json")
    for name, value in again.items():
        setattr(options, name, value if name == "json" else Path(value))
    return again
