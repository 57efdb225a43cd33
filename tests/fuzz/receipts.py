"""Receipts of classified shards: damaged as bytes, and as JSON with other values."""

import re
from pathlib import Path

from app.classify.receipts import read_receipt
from tests.fuzz.harness import Pair, Target
from tests.fuzz.mutate import other_json

DIGEST = "0123456789abcdef" * 4
RECEIPT = {
    "schema": "lenet5-inference/receipt/1",
    "shard": "/data/x.npy",
    "size": 1024,
    "mtime_ns": 1,
    "first": 0,
    "images": 7,
    "correct": 5,
    "identity": {"network": "lenet5", "weights": DIGEST, "precision": "fp32", "classes": 10},
    "sha256": {"labels": DIGEST, "logits": DIGEST},
}


def make(_: Path) -> Pair:
    """What ``classify --resume`` goes by."""

    def read(path: Path) -> None:
        found = read_receipt(path)
        assert type(found["images"]) is int and found["images"] > 0
        assert found["correct"] is None or 0 <= found["correct"] <= found["images"]
        digests = [*map(str, found["sha256"].values()), found["identity"]["weights"]]
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
        assert "labels" in found["sha256"] and isinstance(found["shard"], str)

    return lambda rng: other_json(rng, RECEIPT), read


TARGETS = (Target("receipt", 800, make),)
