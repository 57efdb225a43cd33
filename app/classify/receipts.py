"""Receipts: what lies beside the labels of a shard and proves that they are whole, and of what."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.errors import UserError
from app.files.checks import BadValueError, document, fields, nullable, one_of, shown, string, text, whole
from app.files.json_text import json_text
from app.files.reading import open_regular, read_json
from app.files.writing import replacing
from app.shards import Shard

SCHEMA = "lenet5-inference/receipt/1"
KINDS = ("labels", "logits")
MAX = 2**63 - 1


@dataclass(frozen=True)
class Identity:
    """What computes the results of a run: other values may give other results.

    network: its name. weights: the SHA-256 of their file. precision: the arithmetic. classes: logits of an image.
    """

    network: str
    weights: str
    precision: str
    classes: int


@dataclass(frozen=True)
class Receipt:
    """The results of one shard.

    shard: the file of its images, with its size in bytes and when it was written, in ns. images from ``first`` on.
    correct: labels that are right; None if the true ones are unknown. sha256: of each file of results, by its kind.
    """

    shard: str
    size: int
    mtime_ns: int
    first: int
    images: int
    correct: int | None
    identity: Identity
    sha256: Mapping[str, str]

    def same_work(self, shard: Shard, first: int, images: int, identity: Identity) -> str | None:
        """Return what this receipt's results are of, if it is not this work; None if it is."""
        pairs = (
            ("images", (self.size, self.mtime_ns), (shard.images.size, shard.images.mtime_ns)),
            ("--start or --count", (self.first, self.images), (first, images)),
            ("network", self.identity.network, identity.network),
            ("weights", self.identity.weights, identity.weights),
            ("--precision", self.identity.precision, identity.precision),
            ("classes", self.identity.classes, identity.classes),
        )
        return next((name for name, ours, theirs in pairs if ours != theirs), None)


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Write a receipt, whole or not at all. Raises UserError."""
    with replacing(path) as temporary:
        temporary.write_text(json_text({"schema": SCHEMA, **asdict(receipt)}), encoding="utf-8")


def read_receipt(path: Path) -> Receipt:
    """Read a receipt. Raises UserError for anything else."""
    found: dict[str, Any] = read_json(path, _CHECK, "it is no receipt of classify; move it, or name another --out")
    return Receipt(
        **{key: found[key] for key in found if key not in ("schema", "identity")},
        identity=Identity(**found["identity"]),
    )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file of any size, in hexadecimal. Raises UserError."""
    with open_regular(path) as stream:
        try:
            return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}; classify its shard again") from error


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise BadValueError(f"{shown(value)} is no SHA-256")
    return value


def _consistent(value: dict[str, Any]) -> dict[str, Any]:
    """Check that no more labels are right than there are images."""
    correct, images = value["correct"], value["images"]
    if correct is not None and correct > images:
        raise BadValueError(f".correct: {correct:,} of {images:,} images")
    return value


_COUNT = whole(0, MAX)
_FIELDS = fields(
    {
        "schema": one_of(SCHEMA),
        "shard": string,
        "size": _COUNT,
        "mtime_ns": whole(-MAX, MAX),
        "first": _COUNT,
        "images": whole(1, MAX),
        "correct": nullable(_COUNT),
        "identity": fields({"network": text(), "weights": _digest, "precision": text(), "classes": whole(1, 1 << 20)}),
        "sha256": fields(dict.fromkeys(KINDS, _digest), optional=("logits",)),
    }
)
_CHECK = document(SCHEMA, lambda value: _consistent(_FIELDS(value)))
