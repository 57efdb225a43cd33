"""Choose, check and lock the files of a training before it begins, so that hours of work cannot be lost.

A lock file beside each file keeps other trainings from writing it.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import combinations
from math import prod
from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.files.writing import hold_lock
from app.network import weights
from app.network.definitions import Network
from app.terminal.output import check_writable
from app.training import checkpoint
from app.training.checkpoint import Checkpoint, file_stamp
from app.training.model import Model
from app.training.optimisers import OPTIMISERS
from app.training.request import TrainRequest
from app.training.settings import Settings

BESIDE_ARRAYS = 1 << 20  # bytes per file besides arrays: more than 10,000 epochs of history take


class OutputFiles(Frozen):
    """The files of a training.

    output: the weights. overwrite: whether to replace an existing file. resumed: content of ``checkpoint`` from which
    the training continues; None for a new training.
    """

    output: Path
    checkpoint: Path
    overwrite: bool
    resumed: Checkpoint | None

    def check_output(self) -> None:
        """Raise UserError if ``output`` exists, unless ``overwrite`` is true or a finished training is resumed."""
        resumed = self.resumed
        ended = resumed is not None and len(resumed.progress.history) == resumed.settings.epochs
        # A training with all epochs done may have written its output before it failed.
        if not (self.overwrite or ended) and os.path.lexists(self.output):
            raise UserError(f"{self.output} exists: name another --out, or replace it with --overwrite")

    def resume_hint(self) -> str:
        """Return the end of an error message that says how to resume; "" without a checkpoint."""
        kept = self.checkpoint
        if not kept.exists():
            return ""
        output = f" --out {self.output}" if kept != checkpoint.checkpoint_path(self.output) else ""
        overwrite = " --overwrite" if self.overwrite and os.path.lexists(self.output) else ""
        return f"; {kept} stores the last complete epoch: continue with --resume {kept}{output}{overwrite}"

    @contextmanager
    def lock_and_check(self) -> Iterator[None]:
        """Lock the files while the block runs. Raises UserError if another training writes them or has just done so."""
        with lock_files(self.output, self.checkpoint):
            self.check_output()
            if file_stamp(self.checkpoint) != (self.resumed and self.resumed.stamp):
                raise UserError(f"another training has just written or removed {self.checkpoint}: try again")
            yield


def choose_output_files(request: TrainRequest, network: Network, resumed: Checkpoint | None) -> OutputFiles:
    """Return the files for weights and checkpoint. ``--resume`` names the checkpoint.

    Raises UserError if one of them, or ``--json``, cannot be written, or equals another file of this training.
    """
    output: Path = request.out or _default_output_path(network, request.resume)
    check_writable(output, "--out")
    kept: Path = request.resume or checkpoint.checkpoint_path(output)
    check_writable(kept, "--resume" if request.resume else "--out")
    _check_files_differ(
        {
            "--out": output,
            "--json": None if request.json in (None, "-") else Path(request.json),
            "--resume" if request.resume else "the checkpoint": kept,
            "--data": request.data,
            "--labels": request.labels,
            "--start": request.start,
            "--teacher": None if request.teacher == request.start else request.teacher,
        }
    )
    if request.resume is None and kept.exists():
        with lock_files(kept):  # locked: a running training's must not be removed
            raise UserError(f"{kept} stores an unfinished training: continue with --resume {kept}, or remove it")
    files = OutputFiles(output, kept, request.overwrite, resumed)
    files.check_output()
    return files


def check_file_sizes(settings: Settings, model: Model) -> None:
    """Raise UserError if the weights file or the checkpoint would be too large to read back."""
    elements = sum(map(prod, model.shapes.values()))
    copies = 2 + len(OPTIMISERS[settings.optimiser].slots)  # the parameters, the best ones, the optimiser's slots
    stored = elements * np.dtype(settings.storage).itemsize
    for what, size, most in (
        ("weights", stored, weights.MAX_BYTES),
        ("checkpoint", copies * elements * np.dtype(np.float32).itemsize, checkpoint.MAX_BYTES),
    ):
        if size + BESIDE_ARRAYS > most:
            raise UserError(
                f"network {settings.network} has {elements:,} parameters: a {what} file of {size:,} bytes is more "
                f"than the {most - BESIDE_ARRAYS:,} that can be read back; choose a smaller network"
            )


def _default_output_path(network: Network, resume: Path | None) -> Path:
    if resume is not None and resume.name.endswith(checkpoint.SUFFIX) and resume.name != checkpoint.SUFFIX:
        return resume.with_name(resume.name.removesuffix(checkpoint.SUFFIX))
    return Path(f"{network.name}_trained.h5")


def _check_files_differ(files: dict[str, Path | None]) -> None:
    given = [(option, path) for option, path in files.items() if path is not None]
    for (first, path), (second, other) in combinations(given, 2):
        if os.path.realpath(path) == os.path.realpath(other):
            raise UserError(f"{first} {path} is the same file as {second} {other}: name different files")


@contextmanager
def lock_files(*files: Path) -> Iterator[None]:
    """Lock these files while the block runs; every training locks its files before it writes.

    Raises UserError, naming the other process, if one is locked (see ``hold_lock``).
    """
    with ExitStack() as held:
        for real, place in {os.path.realpath(place): place for place in files}.items():
            held.enter_context(_acquire_file_lock(Path(real), place))
        yield


def _acquire_file_lock(real: Path, place: Path) -> AbstractContextManager[None]:
    path = real.with_name(f".{hashlib.sha256(os.fsencode(real.name)).hexdigest()[:16]}.lock")  # the name may be long
    return hold_lock(
        path,
        lambda other: f"process {other} is training into {place}: wait for its end, or name another --out",
        "name another --out",
    )
