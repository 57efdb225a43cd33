"""Write the result arrays of a file of images, in any order, and the receipt: a JSON file with their hashes."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from app.base.errors import UserError
from app.classify.shards import Shard
from app.files.checks import BadValueError
from app.files.reading import open_regular, read_json
from app.files.writing import json_text, rename_unfinished, replace_atomically, unwritable_error
from app.records.classify import Identity, Receipt
from app.records.derive import check_for_type

DTYPES: dict[str, np.dtype] = {"labels": np.dtype(np.uint8), "logits": np.dtype(np.float32)}
KINDS = (*DTYPES,)


def receipt_mismatch(receipt: Receipt, shard: Shard, first: int, images: int, identity: Identity) -> str | None:
    """Return the first thing in which a receipt differs from this run, such as ``weights``; None if nothing differs.

    first, images: index of the first and number of the images of the shard that this run classifies.
    """
    pairs = (
        ("images", (receipt["size"], receipt["mtime_ns"]), (shard.images.size, shard.images.mtime_ns)),
        ("--start or --count", (receipt["first"], receipt["images"]), (first, images)),
        ("network", receipt["identity"]["network"], identity["network"]),
        ("weights", receipt["identity"]["weights"], identity["weights"]),
        ("--precision", receipt["identity"]["precision"], identity["precision"]),
        ("classes", receipt["identity"]["classes"], identity["classes"]),
    )
    return next((name for name, ours, theirs in pairs if ours != theirs), None)


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Write the receipt of a shard, which has the hashes of its results, atomically. Raises UserError."""
    with replace_atomically(path) as temporary:
        temporary.write_text(json_text(receipt), encoding="utf-8")


def read_receipt(path: Path) -> Receipt:
    """Return the receipt in a file. Raise UserError if the file is no valid receipt."""
    found: Receipt = read_json(path, _check_receipt, "it is no receipt of classify; move it, or name another --out")
    return found


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, reading it in blocks. Raises UserError."""
    with open_regular(path) as stream:
        try:
            return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}; classify its shard again") from error


def _check_receipt(value: Any) -> Receipt:
    """Return ``value`` if it is a valid receipt. Raises BadValueError, also for more right labels than images."""
    found: Receipt = check_for_type(Receipt)(value)
    correct, images = found["correct"], found["images"]
    if correct is not None and correct > images:
        raise BadValueError(f".correct: {correct:,} of {images:,} images")
    return found


class TempFiles:
    """The temporary files of a shard's result arrays; the caller gives them their final names or removes them.

    correct: number of right labels so far; None as soon as it is unknown for some images.
    """

    def __init__(self, folder: Path, paths: Mapping[str, Path], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Create the files in ``folder``. Raises UserError if that fails.

        paths, shapes: kind of result (``labels``, ``logits``) → final path, and shape of the array.
        """
        self._arrays: dict[str, _NpyFile] = {}
        self._left = shapes["labels"][0]
        self._written: set[int] = set()
        self.correct: int | None = 0
        try:
            for kind, path in paths.items():
                self._arrays[kind] = _NpyFile(folder / path.name, path, shapes[kind], DTYPES[kind])
        except BaseException:
            self.remove()
            raise

    @property
    def labels_path(self) -> Path:
        """Return the path of the temporary file of labels."""
        return self._arrays["labels"].temporary

    @property
    def is_complete(self) -> bool:
        """Return whether the results of all images are stored."""
        return not self._left

    def write(self, first: int, results: Mapping[str, np.ndarray | None], correct: int | None) -> None:
        """Store results of images from index ``first`` on, unless they are stored already. Raises UserError.

        results: kind → (n, …). correct: number of right labels among them; None if unknown.
        """
        if first in self._written:
            return
        for kind, array in self._arrays.items():
            rows = results[kind]
            assert rows is not None, kind
            array.write(first, rows)
        labels = results["labels"]
        assert labels is not None
        self._written.add(first)
        self._left -= len(labels)
        self.correct = None if self.correct is None or correct is None else self.correct + correct

    def sha256(self) -> dict[str, str]:
        """Return kind of result (``labels``, ``logits``) → SHA-256 of its temporary file."""
        return {kind: file_sha256(array.temporary) for kind, array in self._arrays.items()}

    def publish(self, *, overwrite: bool) -> None:
        """Close and rename the files to their final names, over existing ones if ``overwrite``. Raises UserError."""
        for array in self._arrays.values():
            array.publish(overwrite)

    def remove(self) -> None:
        """Remove the files, unless they were published."""
        for array in self._arrays.values():
            array.remove()


class _NpyFile:
    """An NPY file whose rows can be written in any order; it has a temporary name until it is published."""

    def __init__(self, temporary: Path, path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._path = path
        self._shape = shape
        self._dtype = dtype
        self.temporary = temporary
        try:
            self._stream: BinaryIO = self.temporary.open("xb", buffering=0)
            described = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            npy.write_array_header_1_0(self._stream, described)
            self._offset = self._stream.tell()
        except OSError as error:
            self.remove()
            raise unwritable_error(path, error) from error

    def write(self, first: int, rows: np.ndarray) -> None:
        """Store C-contiguous rows from row ``first`` on. Raises UserError, and ValueError for rows that do not fit."""
        if rows.dtype != self._dtype or rows.shape[1:] != self._shape[1:] or first + len(rows) > self._shape[0]:
            raise ValueError(f"{rows.dtype} {rows.shape} from {first} on is no part of {self._dtype} {self._shape}")
        row = self._dtype.itemsize * int(np.prod(self._shape[1:]))
        try:
            self._stream.seek(self._offset + first * row)
            left = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
            while left:
                left = left[self._stream.write(left) :]
        except OSError as error:
            raise unwritable_error(self._path, error) from error

    def publish(self, overwrite: bool) -> None:
        """Close the temporary file and rename it to its final name. Raises UserError."""
        try:
            self._stream.close()
            rename_unfinished(self.temporary, self._path, overwrite=overwrite)
        except OSError as error:
            raise unwritable_error(self._path, error) from error

    def remove(self) -> None:
        """Remove the file, unless it was published."""
        with suppress(OSError, AttributeError):
            self._stream.close()
        with suppress(OSError):
            self.temporary.unlink()
