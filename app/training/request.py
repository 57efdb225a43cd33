"""What ``train`` is asked for. No NumPy here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.errors import UserError
from app.files.checks import Check, fields, text

# Options that do not affect what is learned. A checkpoint keeps them, so that ``--resume`` need not repeat them.
IMAGES = ("data", "labels", "data_dir")  # kept together
OUTPUTS = ("plot", "json")
KEPT = (*IMAGES, *OUTPUTS)
MAX_LENGTH = 2000
KEPT_CHECK: Check = fields({name: text(MAX_LENGTH) for name in KEPT}, optional=KEPT)


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """The options of ``train``; None: not given.

    settings: fields of ``Settings`` that were given, ``network`` and ``images`` among them; json: a file, or ``-`` for
    standard output; plot: a folder.
    """

    settings: Mapping[str, Any]
    resume: Path | None = None
    output: Path | None = None
    overwrite: bool = False
    device: str = "auto"
    workers: int | None = None
    data: Path | None = None
    labels: Path | None = None
    data_dir: Path | None = None
    plot: Path | None = None
    json: str | None = None

    def kept(self) -> dict[str, str]:
        """The options for the checkpoint to keep: absolute paths, or ``-``. Unprintable paths are left out."""
        given = {name: str(value) for name in KEPT if (value := getattr(self, name)) is not None}
        paths = {n: "-" if (n, path) == ("json", "-") else str(Path(path).absolute()) for n, path in given.items()}
        return {name: path for name, path in paths.items() if path.isprintable() and len(path) <= MAX_LENGTH}

    def resumed(self, kept: Mapping[str, str]) -> tuple[TrainRequest, dict[str, str]]:
        """Fill in what was not given from the checkpoint's options; also returns which of them were used.

        Raises UserError if its JSON file exists: whoever wrote the checkpoint must not choose what is overwritten.
        """
        images = () if any(getattr(self, name) is not None for name in IMAGES) else IMAGES
        used = {name: kept[name] for name in (*images, *OUTPUTS) if name in kept and getattr(self, name) is None}
        json = used.get("json", "-")
        if json != "-" and os.path.lexists(json):
            raise UserError(f"{json}, the --json of the checkpoint, exists: name a file for the figures with --json")
        values: dict[str, Any] = {name: value if name == "json" else Path(value) for name, value in used.items()}
        return replace(self, **values), used
