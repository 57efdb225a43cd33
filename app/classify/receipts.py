"""Receipts: what lies beside the labels of a shard and proves that they are whole, and of what."""

import hashlib
from pathlib import Path
from typing import Any

from app.base.errors import UserError
from app.classify.shards import Shard
from app.files.checks import BadValueError
from app.files.reading import open_regular, read_json
from app.files.writing import json_text, replacing
from app.records.classify import Identity, Receipt
from app.records.derive import check_of

KINDS = ("labels", "logits")


def same_work(receipt: Receipt, shard: Shard, first: int, images: int, identity: Identity) -> str | None:
    """Return what a receipt's results are of, if it is not this work; None if it is."""
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
    """Write a receipt, whole or not at all. Raises UserError."""
    with replacing(path) as temporary:
        temporary.write_text(json_text(receipt), encoding="utf-8")


def read_receipt(path: Path) -> Receipt:
    """Read a receipt. Raises UserError for anything else."""
    found: Receipt = read_json(path, _check, "it is no receipt of classify; move it, or name another --out")
    return found


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file of any size, in hexadecimal. Raises UserError."""
    with open_regular(path) as stream:
        try:
            return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}; classify its shard again") from error


def _check(value: Any) -> Receipt:
    """Check a receipt, and that no more labels are right than there are images. Raises BadValueError."""
    found: Receipt = check_of(Receipt)(value)
    correct, images = found["correct"], found["images"]
    if correct is not None and correct > images:
        raise BadValueError(f".correct: {correct:,} of {images:,} images")
    return found
