"""The measured and the published figures that the documents are made of: JSON files under docs/benchmarks/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.ladder.results import CPU, LIBRARY, OURS, SCHEMA
from app.bench.stored_checks import CHECKS
from app.errors import UserError
from app.files.checks import Check, document
from app.files.reading import present, read_json
from app.planning.choices import LATENCY_KERNEL

FIGURES = Path(__file__).parents[2] / "docs" / "benchmarks"
NETWORKS = ("lenet5", "fa19", "k7", "minidnn86")
BENCH = {network: f"h100_bench_{network}.json" for network in NETWORKS}
PROFILE, RESOURCES, OLD_REPORTS = "h100_profile_lenet5.json", "kernels_resources.json", "old_reports.json"
PEERS = {network: f"h100_peers_{network}.json" for network in (*NETWORKS, "mlp")}
TRAINING = "h100_train.json"
# File → the version of its schema and the command that makes it.
FILES = {
    **{
        file: (
            SCHEMA,
            f"python main.py bench --network {network} --batches 100,1000,5000,10000 --json docs/benchmarks/{file}",
        )
        for network, file in BENCH.items()
    },
    PROFILE: (
        "lenet5-inference/profile/1",
        f"python main.py profile --counters --precision fp32 --chunk 1000 --json docs/benchmarks/{PROFILE}",
    ),
    RESOURCES: (
        "lenet5-inference/kernels/1",
        f"python main.py kernels --resources --json docs/benchmarks/{RESOURCES}",
    ),
    **{
        file: (
            "lenet5-inference/peers/1",
            f"python main.py bench --peers --network {network} --only ours,torch-eager --json docs/benchmarks/{file}",
        )
        for network, file in PEERS.items()
    },
    TRAINING: ("lenet5-inference/training/1", f"python main.py bench --training --json docs/benchmarks/{TRAINING}"),
    OLD_REPORTS: ("lenet5-inference/old-reports/1", ""),
}
MS = {"ms": 1.0, "s": 1e3}
Row = Mapping[str, Any]


class MissingError(UserError):
    """A JSON file that has not been made yet."""


def check_of(name: str) -> Check:
    """What one of ``FILES`` must hold."""
    schema = FILES[name][0]
    return document(schema, CHECKS[schema])


def load(folder: Path, name: str) -> dict[str, Any]:
    """One of ``FILES``. Raises MissingError if it is not there, UserError if it is something else."""
    _, command = FILES[name]
    path = folder / name
    if not present(path):
        remedy = f"run {command}" if command else "restore it from the repository"
        raise MissingError(f"{path} is missing: {remedy}")
    return read_json(path, check_of(name), "make it again")


@dataclass(frozen=True)
class Bench:
    """One network's bench document. Rows are told apart by name and arithmetic type."""

    network: str
    document: Mapping[str, Any]

    @property
    def images(self) -> int:
        """The batch of the main tables."""
        return int(self.document["images"])

    @property
    def tables(self) -> dict[str, Row]:
        """Item → table."""
        return {table["item"]: table for table in self.document["tables"]}

    @property
    def ops(self) -> list[Row]:
        """The tables of the convolutions alone."""
        return [table for table in self.document["tables"] if table["is_op"]]

    def row(self, item: str, name: str, dtype: str = "float32") -> Row | None:
        """The row of that name and type; None if there is none or it has no time."""
        rows = self.tables[item]["rows"] if item in self.tables else []
        return next((row for row in rows if (row["name"], row["dtype"]) == (name, dtype) and row["ms"]), None)

    def ms(self, item: str, name: str, dtype: str = "float32") -> float | None:
        """Its time."""
        row = self.row(item, name, dtype)
        return row["ms"] if row else None

    def total(self, name: str, dtype: str = "float32", images: int | None = None) -> Row | None:
        """The convolutions' times of a row, added up over a batch of ``images`` (default: the main one)."""
        return next((row for row in self._totals(images) if (row["name"], row["dtype"]) == (name, dtype)), None)

    def _totals(self, images: int | None) -> Sequence[Row]:
        """Those of the main table; or of a batch, none if it was not measured."""
        if images is None:
            return self.document["totals"]
        return next((batch["totals"] for batch in self.document["batches"] if batch["images"] == images), [])

    def sum_ms(self, name: str, dtype: str = "float32", images: int | None = None) -> float | None:
        """The sum alone."""
        total = self.total(name, dtype, images)
        return total["sum_ms"] if total else None

    def best_total(self, dtype: str, images: int | None = None) -> Row | None:
        """The kernel of our own whose convolutions together take the least time over that batch, as in ``total``."""
        rows = [row for row in self._totals(images) if row["kind"] == OURS and row["dtype"] == dtype]
        return min((row for row in rows if row["sum_ms"]), key=lambda row: row["sum_ms"], default=None)

    def best(self, item: str, dtype: str) -> Row | None:
        """The kernel of our own that takes the least time for one item, those only for ``--latency`` left out."""
        rows = self.tables[item]["rows"] if item in self.tables else []
        own = [row for row in rows if row["kind"] == OURS and row["dtype"] == dtype and row["ms"]]
        own = [row for row in own if row["name"] != LATENCY_KERNEL]
        return min(own, key=lambda row: row["ms"], default=None)

    def cudnn(self, dtype: str) -> Row | None:
        """cuDNN's sum in that type."""
        rows = (row for row in self.document["totals"] if row["kind"] == LIBRARY and row["step"] is None)
        return next((row for row in rows if row["dtype"] == dtype), None)

    def floor_ms(self, dtype: str) -> float | None:
        """The convolutions' least time at the measured peaks: arithmetic, or each array moved once, op by op."""
        floors = []
        for table in self.ops:
            timed = [row for row in table["rows"] if row["ms"] and row["dtype"] == dtype and row["kind"] != CPU]
            if not timed:
                return None
            floors.append(min(row["ms"] * row["rates"]["share"] for row in timed))  # by the fastest instructions
        return sum(floors)


@dataclass(frozen=True)
class OldVersion:
    """One version of an old report: its op times, or their sum alone, in ms over ``images`` images.

    at_most: the report says only that it was below. variant, dtype: the row here that does the same, None if none.
    """

    version: str
    images: int
    ops: tuple[float, ...]
    sum_ms: float
    at_most: bool
    variant: str | None
    dtype: str


@dataclass(frozen=True)
class OldReport:
    """What one system's report gives. whole_program: its times are of the whole pass, not of the convolutions.

    gains: what it says of ideas without times: how many times as fast.
    """

    card: str
    year: int
    whole_program: bool
    versions: Sequence[OldVersion]
    gains: Mapping[str, float]

    def version(self, name: str, images: int) -> OldVersion:
        """The version of that name. Raises UserError if there is none."""
        for found in self.versions:
            if (found.version, found.images) == (name, images):
                return found
        raise _missing(f"version {name!r} over {images:,} images")

    def gain(self, name: str) -> float:
        """How many times as fast that idea made it. Raises UserError if it is not told."""
        if name not in self.gains:
            raise _missing(f"gain {name!r}")
        return self.gains[name]


def _missing(what: str) -> UserError:
    return UserError(f"{OLD_REPORTS} has no {what}: restore it from the repository")


def old_reports(document: Mapping[str, Any]) -> dict[str, OldReport]:
    """System → what its report gives, all times in ms."""
    return {
        name: OldReport(
            *(system["card"], system["year"], system["whole_program"]),
            [_version(entry) for entry in system["versions"]],
            system.get("gains", {}),
        )
        for name, system in document["systems"].items()
    }


def _version(entry: Mapping[str, Any]) -> OldVersion:
    unit = MS[entry["unit"]]
    ops = tuple(time * unit for time in entry.get("ops", ()))
    return OldVersion(
        entry["version"],
        entry["images"],
        ops,
        sum(ops) if ops else entry["sum"] * unit,
        entry.get("at_most", False),
        entry["variant"],
        entry.get("dtype", "float32"),
    )
