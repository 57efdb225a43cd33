"""Where a training writes: checked before it begins, so that hours later nothing is lost or written over."""

from __future__ import annotations

import argparse
import os
from itertools import combinations
from pathlib import Path

from app.errors import UserError
from app.networks import Network
from app.report import check_writable
from app.training.checkpoint import SUFFIX, checkpoint_path


def find_places(options: argparse.Namespace, network: Network) -> tuple[Path, Path]:
    """The files of the weights and of the checkpoint, which is ``--resume``'s if there is one.

    Raises UserError if one of them, or ``--json``, cannot be written, or is another file of this training.
    """
    output: Path = options.output or _default_output(network, options.resume)
    check_writable(output, "--output")
    checkpoint: Path = options.resume or checkpoint_path(output)
    check_writable(checkpoint, "--resume" if options.resume else "--output")
    report = None if options.json in (None, "-") else Path(options.json)
    if report is not None:
        check_writable(report)
    _check_different(
        {
            "--output": output,
            "--json": report,
            "--resume" if options.resume else "the checkpoint": checkpoint,
            "--data": options.data,
            "--labels": options.labels,
        }
    )
    if options.resume is None and checkpoint.exists():
        raise UserError(f"{checkpoint} holds an unfinished training: go on with --resume {checkpoint}, or remove it")
    return output, checkpoint


def _default_output(network: Network, resume: Path | None) -> Path:
    if resume is not None and resume.name.endswith(SUFFIX) and resume.name != SUFFIX:
        return resume.with_name(resume.name.removesuffix(SUFFIX))
    return Path(f"{network.name}_trained.h5")


def _check_different(places: dict[str, Path | None]) -> None:
    given = [(option, path) for option, path in places.items() if path is not None]
    for (first, path), (second, other) in combinations(given, 2):
        if os.path.realpath(path) == os.path.realpath(other):
            raise UserError(f"{first} {path} is the same file as {second} {other}: name different files")
