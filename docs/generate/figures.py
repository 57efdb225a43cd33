"""The JSON files under docs/benchmarks/ that the documents are made of, each read once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench import old_reports
from app.bench.ladder.results import CPU, LIBRARY, OURS
from app.bench.old_reports import OldReport, Row
from app.errors import UserError
from app.files.checks import Check
from app.files.reading import present, read_json
from app.planning.choices import LATENCY_KERNEL
from docs.generate import checks

FIGURES = Path(__file__).parents[1] / "benchmarks"
NETWORKS = ("lenet5", "fa19", "k7", "minidnn86")
BENCH = {network: f"h100_bench_{network}.json" for network in NETWORKS}
PROFILE, RESOURCES, OLD_REPORTS = "h100_profile_lenet5.json", "kernels_resources.json", old_reports.PATH.name
PEERS = {network: f"h100_peers_{network}.json" for network in (*NETWORKS, "mlp")}
TRAINING = "h100_train.json"
# File → its schema in docs/schemas/, and the command that makes it.
FILES = {
    **{file: ("bench", f"bench --network {name} --batches 100,1000,5000,10000") for name, file in BENCH.items()},
    PROFILE: ("profile", "profile --counters --precision fp32 --chunk 1000"),
    RESOURCES: ("kernels", "kernels --resources"),
    **{file: ("peers", f"bench --peers --network {name} --only ours,torch-eager") for name, file in PEERS.items()},
    TRAINING: ("training", "bench --training"),
}


class MissingError(UserError):
    """A JSON file has not been made yet."""


def command_of(name: str) -> str:
    """Return the command that makes one of ``FILES``."""
    return f"python main.py {FILES[name][1]} --json docs/benchmarks/{name}"


def check_of(name: str) -> Check:
    """Return the check of one of ``FILES``, or of the old reports."""
    return old_reports.CHECK if name == OLD_REPORTS else checks.check_of(FILES[name][0])


def load(folder: Path, name: str) -> dict[str, Any]:
    """Read one of ``FILES``, or the old reports. Raises MissingError if it is not there, UserError if it is bad."""
    path = folder / name
    if name == OLD_REPORTS:
        return old_reports.load(path)
    if not present(path):
        raise MissingError(f"{path} is missing: run {command_of(name)}")
    found: dict[str, Any] = read_json(path, check_of(name), "make it again")
    return found


@dataclass(frozen=True)
class Bench:
    """One network's bench document. A name and an arithmetic type identify a row."""

    network: str
    document: Mapping[str, Any]

    @property
    def images(self) -> int:
        """Images in the batch of the main tables."""
        return int(self.document["images"])

    @property
    def tables(self) -> dict[str, Row]:
        """Item → table."""
        return {table["item"]: table for table in self.document["tables"]}

    @property
    def ops(self) -> list[Row]:
        """The tables of single convolutions."""
        return [table for table in self.document["tables"] if table["is_op"]]

    def row(self, item: str, name: str, dtype: str = "float32") -> Row | None:
        """Return the timed row of that name and type; None if there is none."""
        return next((row for row in self._timed(item, dtype) if row["name"] == name), None)

    def _timed(self, item: str, dtype: str) -> list[Row]:
        rows = self.tables[item]["rows"] if item in self.tables else []
        return [row for row in rows if row["dtype"] == dtype and row["ms"]]

    def ms(self, item: str, name: str, dtype: str = "float32") -> float | None:
        """Return that row's time."""
        row = self.row(item, name, dtype)
        return row["ms"] if row else None

    def total(self, name: str, dtype: str = "float32", images: int | None = None) -> Row | None:
        """Return a row's times summed over the convolutions, for a batch of ``images`` (default: the main one)."""
        rows: Sequence[Row] = old_reports.totals_over(self.document, images)
        return next((row for row in rows if (row["name"], row["dtype"]) == (name, dtype)), None)

    def sum_ms(self, name: str, dtype: str = "float32", images: int | None = None) -> float | None:
        """Return the sum of ``total``."""
        total = self.total(name, dtype, images)
        return total["sum_ms"] if total else None

    def best_total(self, dtype: str) -> Row | None:
        """Return the sums of our kernel whose convolutions together take the least time."""
        return old_reports.best_total(self.document, dtype)

    def best(self, item: str, dtype: str) -> Row | None:
        """Return our fastest kernel for one item, apart from the one for ``--latency``."""
        own = [row for row in self._timed(item, dtype) if row["kind"] == OURS and row["name"] != LATENCY_KERNEL]
        return min(own, key=lambda row: row["ms"], default=None)

    def cudnn(self, dtype: str) -> Row | None:
        """Return cuDNN's sums in that type."""
        rows = (row for row in self.document["totals"] if row["kind"] == LIBRARY and row["step"] is None)
        return next((row for row in rows if row["dtype"] == dtype), None)

    def floor_ms(self, dtype: str) -> float | None:
        """Return the least time of the convolutions at the measured peaks.

        A convolution takes at least its arithmetic, and at least the time to move each array once.
        """
        floors = []
        for table in self.ops:
            timed = [row for row in self._timed(table["item"], dtype) if row["kind"] != CPU and row["rates"]["share"]]
            if not timed:
                return None
            floors.append(min(row["ms"] * row["rates"]["share"] for row in timed))  # by the fastest instructions
        return sum(floors)


class Figures:
    """File → document, for one folder. Raises MissingError for a file that is not made yet, UserError for a bad one."""

    def __init__(self, folder: Path = FIGURES) -> None:
        self._folder = folder
        self._loaded: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self._loaded:
            self._loaded[name] = load(self._folder, name)
        return self._loaded[name]

    def optional(self, name: str) -> dict[str, Any] | None:
        """Return the document, or None if the file is not made yet."""
        try:
            return self[name]
        except MissingError:
            return None

    def bench(self, network: str) -> Bench:
        """Return one network's measurements."""
        return Bench(network, self[BENCH[network]])

    @property
    def benches(self) -> Mapping[str, Bench]:
        """The measurements of all networks."""
        return {network: self.bench(network) for network in NETWORKS}

    @property
    def old(self) -> dict[str, OldReport]:
        """System → the kernel times in its report."""
        return old_reports.kernel_reports(self[OLD_REPORTS])
