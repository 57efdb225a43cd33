"""What commands read beside images and weights: tuning tables, figures, SHA256SUMS and compiled kernels.

A cached kernel that is not exactly what was put there is none.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

from app.cuda import compiler
from app.files import shipped
from app.planning import tuning
from docs.generate.figures import BENCH, FIGURES, Figures
from tests.fuzz.harness import Pair, Target, linked
from tests.fuzz.mutate import damaged, other_json

TUNED = {"parameters": {"TILE": 16, "BK": 8}, "ms": 0.25, "images": 1000}
TUNING = {"schema": tuning.SCHEMA, "card": "Card", "entries": {"conv 1": {"direct": TUNED, "tile": TUNED}, "fc": {}}}
CUBIN = b"\x7fELF" + bytes(range(256)) * 2
DIGEST = "0123456789abcdef" * 4


def make_tuning(folder: Path) -> Pair:
    """What ``auto`` goes by."""

    def read(path: Path) -> None:
        for variants in tuning._read(path).values():
            for name, tuned in variants.items():
                assert isinstance(name, str) and type(tuned.images) is int and tuned.images > 0
                assert type(tuned.ms) is float and tuned.ms > 0 and math.isfinite(tuned.per_image)
                assert all(type(name) is str and type(n) is int and n > 0 for name, n in tuned.parameters.items())

    return lambda rng: other_json(rng, TUNING), read


def make_figures(folder: Path) -> Pair:
    """A bench document as ``python -m docs.generate`` reads it."""
    document: Any = json.loads((FIGURES / BENCH["lenet5"]).read_text())
    document = {**document, "batches": document["batches"][:1], "whole_program": document["whole_program"][:2]}
    document["tables"] = [{**table, "rows": table["rows"][:2]} for table in document["tables"] if table["is_op"]]
    document["totals"] = document["totals"][:2]
    document["batches"] = [{**batch, "totals": batch["totals"][:1]} for batch in document["batches"]]

    def read(path: Path) -> None:
        name = BENCH["lenet5"]
        assert Figures(linked(folder / name, path))[name]["schema"] == "lenet5-inference/bench/1"

    return lambda rng: other_json(rng, document), read


def make_sums(folder: Path) -> Pair:
    """The list of hashes beside the shipped weights."""
    good = "".join(f"{DIGEST}  {name}_fashion.h5\n" for name in ("lenet5", "mlp")).encode()

    def read(path: Path) -> None:
        for name, digest in shipped.checksums(linked(folder / shipped.CHECKSUMS, path)).items():
            assert name and len(digest) == 64 and set(digest) <= set("0123456789abcdef")

    return lambda rng: damaged(rng, good), read


def make_kernels(folder: Path) -> Pair:
    """Compiled kernels in the cache. The reader answers with the machine code or None, which counts as refused."""
    good = folder / "good.cubin"
    compiler._write_cached(good, CUBIN)
    content = good.read_bytes()

    def read(path: Path) -> bool:
        os.chmod(path, 0o600)  # noqa: PTH101 - as the cache has it
        assert compiler._read_cached(good) == CUBIN
        found = compiler._read_cached(path)
        assert found is None or (path.read_bytes() == content and found == CUBIN)
        return found is not None

    return lambda rng: damaged(rng, content), read


TARGETS = (
    Target("tuning", 2000, make_tuning),
    Target("figures", 200, make_figures),
    Target("sums", 800, make_sums),
    Target("kernels", 1000, make_kernels),
)
