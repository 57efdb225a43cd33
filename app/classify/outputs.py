"""Write the results folder: labels and logits of each shard (file of images), atomically, with a receipt.

``NAME.labels.npy`` holds uint8 (images,), ``NAME.logits.npy`` holds float32 (images, classes), ``NAME.json`` is the
receipt. NAME is the file name of the shard without its suffixes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np

from app.base.errors import UserError
from app.classify.pieces import count_correct
from app.classify.receipts import DTYPES, KINDS, TempFiles, file_sha256, read_receipt, receipt_mismatch, write_receipt
from app.classify.shards import Shard, ShardError
from app.files.reading import may_exist
from app.files.writing import check_unlocked, hold_lock
from app.records.classify import Identity, Receipt, Results

ENDINGS = (".gz", ".npy", ".h5", ".hdf5", ".idx")
COMPARED_LABELS = 1 << 20  # labels compared at a time
LOCK = ".lenet5-inference.lock"
UNFINISHED = ".lenet5-inference-unfinished"  # a folder; whoever holds the lock may empty it

Window = tuple[int, int]
"""First image and number of images."""


class OutputFolder:
    """Collect the results of a run's shards in any order, and give those of a complete shard their final file names.

    Methods take a shard's index in ``shards`` as ``number``. Only one thread uses the folder, in a ``create_and_lock``
    block. identity: network, weights and arithmetic of the run. receipts: index → receipt of each complete shard. kept:
    indices of the shards whose results are kept from an earlier run (with ``resume``). notes: a line for each shard
    that is classified again because its results of an earlier run are unusable.
    """

    def __init__(
        self,
        folder: Path,
        shards: Sequence[Shard],
        windows: Sequence[Window],
        *,
        logits: bool = False,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Choose the result files' names. windows: first image and number of images of each shard. logits: store them.

        resume: keep complete, verified results of earlier runs. overwrite: replace them. Raises UserError if two shards
        would have the same result files.
        """
        self.folder = folder
        self._shards = shards
        self._windows = windows
        self._kinds = KINDS if logits else ("labels",)
        self._resume = resume
        self._replace = resume or overwrite
        self._names = _result_base_names(shards)
        self._unfinished: dict[int, TempFiles] = {}
        self.identity: Identity
        self.receipts: dict[int, Receipt] = {}
        self.kept: frozenset[int] = frozenset()
        self.notes: list[str] = []

    def check_usable(self) -> None:
        """Raise UserError if another run uses the folder, or if results or input files must not be replaced.

        ``create_and_lock`` checks again; this earlier check reports a fault before the devices start.
        """
        check_unlocked(self.folder / LOCK, self._busy_message)
        self._check_inputs_not_overwritten()
        there: set[Path] = set()
        try:
            there.update(self.folder.iterdir())
        except NotADirectoryError as error:
            raise _folder_error(self.folder, error) from error
        except OSError:  # the folder does not exist yet, or cannot be listed
            pass
        self._check_overwrite_allowed(
            path for number in self.remaining_shards for path in self._result_files(number) if path in there
        )

    @contextmanager
    def create_and_lock(
        self, identity: Identity, progress: Callable[[int], object] = lambda shards: None
    ) -> Iterator[OutputFolder]:
        """Create and lock the folder and yield this object; at the end remove unfinished files.

        identity: network, weights and arithmetic of the run. progress: called with 1 after each check of a shard's
        earlier results. Raises UserError if the folder cannot be used, or contains results that must not be replaced.
        """
        self.identity = identity
        _make_folder(self.folder)
        with hold_lock(self.folder / LOCK, self._busy_message, "name another --out"):
            self._check_inputs_not_overwritten()
            self._load_earlier_results(progress)
            shutil.rmtree(self.folder / UNFINISHED, ignore_errors=True)  # left by a killed run
            _make_folder(self.folder / UNFINISHED)
            try:
                yield self
            finally:
                for number in [*self._unfinished]:
                    self.discard_unfinished(number)
                shutil.rmtree(self.folder / UNFINISHED, ignore_errors=True)

    @property
    def remaining_shards(self) -> list[int]:
        """Return the indices of the shards that have no complete results yet."""
        return [number for number, (_, count) in enumerate(self._windows) if count and number not in self.receipts]

    def write(
        self, number: int, first: int, labels: np.ndarray, logits: np.ndarray | None, correct: int | None
    ) -> Receipt | None:
        """Store the results of some images; return the receipt once the shard is complete.

        number: index of the shard. first: index in the shard of the first of these images. labels: (n,) uint8. logits:
        (n, classes) float32, ignored unless wanted. correct: number of right labels; None if unknown. Results that
        arrive twice count once. Raises UserError if a file cannot be written. Raises ShardError if the shard was
        written meanwhile or its true labels cannot be read; the unfinished files of the shard are then removed.
        """
        begin, _ = self._windows[number]
        try:
            if number not in self._unfinished:
                shapes = self._result_shapes(number)
                paths = {kind: self._result_path(number, kind) for kind in self._kinds}
                self._unfinished[number] = TempFiles(self.folder / UNFINISHED, paths, shapes)
            unfinished = self._unfinished[number]
            unfinished.write(first - begin, {"labels": labels, "logits": logits}, correct)
            return self._finish_shard(number) if unfinished.is_complete else None
        except BaseException:
            self.discard_unfinished(number)
            raise

    def discard_unfinished(self, number: int) -> None:
        """Remove the unfinished files of a shard, if there are any."""
        unfinished = self._unfinished.pop(number, None)
        if unfinished is not None:
            unfinished.remove()

    def _finish_shard(self, number: int) -> Receipt:
        shard, (first, count) = self._shards[number], self._windows[number]
        shard.check_unchanged()
        unfinished = self._unfinished[number]
        correct = unfinished.correct
        if correct is None and shard.is_labelled:
            try:
                correct = self._count_correct(number, unfinished.labels_path)
            except UserError as error:
                raise ShardError(str(error)) from error
        receipt: Receipt = {
            "schema": "lenet5-inference/receipt/1",
            "shard": str(shard.path),
            "size": shard.images.size,
            "mtime_ns": shard.images.mtime_ns,
            "first": first,
            "images": count,
            "correct": correct,
            "identity": self.identity,
            "sha256": cast(Results, unfinished.sha256()),
        }
        if self._replace:  # the receipt first: result files without one count as unfinished
            for path in self._result_files(number):
                _remove_file(path)
        unfinished.publish(overwrite=self._replace)
        write_receipt(self._receipt_path(number), receipt)
        del self._unfinished[number]
        self.receipts[number] = receipt
        return receipt

    def _result_path(self, number: int, kind: str) -> Path:
        return self.folder / f"{self._names[number]}.{kind}.npy"

    def _result_files(self, number: int) -> list[Path]:
        return [self._receipt_path(number), *(self._result_path(number, kind) for kind in KINDS)]

    def _receipt_path(self, number: int) -> Path:
        return self.folder / f"{self._names[number]}.json"

    def _busy_message(self, process: str) -> str:
        return f"process {process} is classifying into {self.folder}: wait for its end, or name another --out"

    def _check_inputs_not_overwritten(self) -> None:
        """Raise UserError if a result file would replace an input file."""
        stored = [one for shard in self._shards for one in (shard.images, shard.truth) if one is not None]
        read = {os.path.realpath(one.path) for one in stored}
        for number in range(len(self._shards)):
            for path in self._result_files(number):
                if os.path.realpath(path) in read:
                    raise UserError(f"{path} is read and would be replaced by results: name another --out")

    def _check_overwrite_allowed(self, existing: Iterable[Path]) -> None:
        """Raise UserError if results exist and the options forbid replacing them."""
        if not self._replace and (first := next(iter(existing), None)) is not None:
            raise UserError(
                f"{first} exists: name another --out, continue with --resume, or replace it with --overwrite"
            )

    def _load_earlier_results(self, progress: Callable[[int], object]) -> None:
        """Keep valid earlier results, note unusable ones. Raises UserError if one may be neither kept nor replaced."""
        for number in self.remaining_shards:
            existing = [path for path in self._result_files(number) if may_exist(path)]
            self._check_overwrite_allowed(existing)
            if existing and self._resume:
                reason = self._keep_result_if_valid(number)
                if reason is not None:
                    self.notes.append(f"{self._shards[number].path} is classified again: {reason}")
            progress(1)
        self.kept = frozenset(self.receipts)

    def _keep_result_if_valid(self, number: int) -> str | None:
        """Keep an earlier run's results of a shard if they are valid, and return None; otherwise return the fault."""
        path = self._receipt_path(number)
        if not may_exist(path):
            return f"{path} is missing"
        receipt = read_receipt(path)
        other = receipt_mismatch(receipt, self._shards[number], *self._windows[number], self.identity)
        if other is not None:
            raise UserError(f"{path} is of other {other}: name another --out, or replace it with --overwrite")
        digests: Mapping[str, object] = receipt["sha256"]
        for kind in {*self._kinds, *digests}:
            file = self._result_path(number, kind)
            if kind not in digests:
                return f"{path} names no {kind}"
            if not may_exist(file):
                return f"{file} is missing"
            if file_sha256(file) != digests[kind] or not self._has_expected_array(file, number, kind):
                return f"{file} is not what was written"
        correct = receipt["correct"]
        if self._shards[number].is_labelled:  # the true labels may differ from the earlier run's
            correct = self._count_correct(number, self._result_path(number, "labels"))
        self.receipts[number] = {**receipt, "correct": correct}
        return None

    def _has_expected_array(self, file: Path, number: int, kind: str) -> bool:
        """Return whether a file has the shape and type of a shard's result array. kind: ``labels`` or ``logits``."""
        try:
            found = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return False
        return (getattr(found, "dtype", None), getattr(found, "shape", None)) == (
            DTYPES[kind],
            self._result_shapes(number)[kind],
        )

    def _result_shapes(self, number: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a shard's result arrays by kind (``labels``, ``logits``)."""
        _, count = self._windows[number]
        return {"labels": (count,), "logits": (count, self.identity["classes"])}

    def _count_correct(self, number: int, path: Path) -> int:
        """Count the right labels in a result file. Raises UserError if the true labels cannot be read."""
        shard, (first, count) = self._shards[number], self._windows[number]
        labels = np.load(path, mmap_mode="r")
        with shard.open_reader() as reader:
            return sum(
                count_correct(labels[at : at + COMPARED_LABELS], shard, reader, first + at, self.identity["classes"])
                for at in range(0, count, COMPARED_LABELS)
            )


def _result_base_names(shards: Sequence[Shard]) -> list[str]:
    """Return the base name of each shard's result files. Raises UserError if two are equal."""
    names: dict[str, Path] = {}
    for shard in shards:
        name = shard.path.name
        for ending in ENDINGS:
            name = name.removesuffix(ending) or name
        if name in names:
            raise UserError(
                f"{names[name]} and {shard.path} would both be written as {name}.labels.npy: "
                "rename one, or classify them into different folders"
            )
        names[name] = shard.path
    return [*names]


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _folder_error(folder, error) from error


def _folder_error(folder: Path, error: OSError) -> UserError:
    return UserError(f"--out {folder} is no folder that can be made ({error.strerror}): name another")


def _remove_file(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot replace {path}: {error.strerror}; name another --out") from error
