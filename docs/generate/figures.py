"""Read and check the JSON files of docs/benchmarks/, from which the documents are generated."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from app.base.errors import UserError
from app.files.checks import BadValueError, Check, format_for_error
from app.files.reading import may_exist, read_json
from app.lab.bench.results import CPU, OURS
from app.lab.document import Row, fastest_row, first_row
from app.lab.peers.rounds import OURS as OURSELVES
from app.ladder.stored import BENCHES, FIGURES, INSTRUCTIONS, RESOURCES
from app.planning.choices import LATENCY_KERNEL
from app.records import derive
from app.records.bench import Bench as BenchDocument
from app.records.kernels import CompiledKernels, DisassembledKernels

NETWORKS = ("lenet5", "fa19", "k7", "minidnn86")
BENCH = {network: BENCHES.format(network) for network in NETWORKS}
PROFILE = "h100_profile_lenet5.json"
# Networks that are compared with other systems, by name → value of --network: built-in ones and those of docs/networks.
COMPARED = {
    **{name: name for name in (*NETWORKS, "mlp")},
    **{path.stem: f"docs/networks/{path.name}" for path in sorted((FIGURES.parent / "networks").glob("*.toml"))},
}
COMPARISONS = "*_peers_*.json"  # files with comparisons, each of any networks; PEERS has their usual names
PEERS = {network: f"h200_peers_{network}.json" for network in COMPARED}
SIZES = "1,100,10000"  # of batches
# File → type of its document in app/records, and the arguments of main.py that write it.
FILES = {
    **{file: ("bench", f"bench --network {name} --batches 100,1000,5000,10000") for name, file in BENCH.items()},
    PROFILE: ("profile", "profile --counters --precision fp32 --chunk 1000"),
    RESOURCES: ("kernels", "kernels --resources"),
    INSTRUCTIONS: ("kernels", "kernels --instructions"),
    **{file: ("peers", f"bench --peers --network {COMPARED[name]} --batches {SIZES}") for name, file in PEERS.items()},
}
# File of docs/scale.md, which may be missing → type of its document, and the module that writes it, with arguments.
COSTS = "classify_costs.json"
SCALE = {
    "h100_scale.json": ("scale", "tests.classify.scale speed memory gzip cluster"),
    "2h100_scale.json": ("scale", "tests.classify.scale devices"),
    "cpu_scale.json": ("scale", "tests.classify.scale workers"),
    COSTS: ("classify-costs", "docs.measure.classify_costs"),
}
CALLS = "h100_calls.json"  # of docs/api.md; may be missing, as may the next, of docs/languages.md
LANGUAGES = "h100_languages.json"
MODULES = SCALE | {CALLS: ("calls", "app.lab.calls"), LANGUAGES: ("languages", "docs.languages")}
CYCLE = "h100_lenet5_fp16_cycle.json"
LARGEST, LONGEST = 1e15, 4000  # limits of a number, and of a string's characters


class MissingError(UserError):
    """Raised for figures whose JSON file does not exist yet."""


def short_card_name(document: Row) -> str:
    """Return the model of the card that a document was measured on: ``H100`` of NVIDIA H100 80GB HBM3."""
    name: str = document["device"]["name"]
    return name.removeprefix("NVIDIA ").partition(" ")[0]


def command_for_file(name: str) -> str:
    """Return the command that writes a JSON file, a key of ``FILES`` or ``MODULES``."""
    command = f"-m {MODULES[name][1]}" if name in MODULES else f"main.py {FILES[name][1]} --overwrite"
    return f"python {command} --json docs/benchmarks/{name}"


def file_content_check(name: str) -> Check:
    """Return the function that checks the content of the JSON file ``name`` in docs/benchmarks/."""
    if fnmatch(name, COMPARISONS):
        return partial(check_document, "peers")
    return partial(check_document, "report" if name == CYCLE else (FILES | MODULES)[name][0])


def check_document(name: str, value: Any) -> Any:
    """Return ``value``, a document of the kind ``name``, such as ``bench``. Raises BadValueError if it is unusable."""
    compiled = CompiledKernels | DisassembledKernels
    try:
        derive.check_for_type(compiled if name == "kernels" else derive.document_types()[name])(value)
        if name == "bench":
            _check_bench(value)
        _check_numbers_and_strings(value)
    except RecursionError:
        raise BadValueError("nested too deep") from None
    return value


def _check_bench(found: BenchDocument) -> None:
    """Raise BadValueError unless a bench document has two convolutions and a timed run of the whole program."""
    if sum(table["is_op"] for table in found["tables"]) != 2:
        raise BadValueError(".tables: not two of a convolution")
    if not any(row["ms"] for row in found["whole_program"]):
        raise BadValueError(".whole_program: no row has a time")


def _check_numbers_and_strings(value: Any) -> None:
    """Raise BadValueError if ``value`` contains a number or a string that is too large for a table."""
    if isinstance(value, dict | list):
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_numbers_and_strings(part)
    elif isinstance(value, str) and not (value.isprintable() and len(value) <= LONGEST):
        raise BadValueError(f"{format_for_error(value)} is not one line of up to {LONGEST} characters")
    elif isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise BadValueError(f"{format_for_error(value)} is not below {LARGEST:g}")


@dataclass(frozen=True)
class Bench:
    """A network's bench document. Its methods find rows of the kernel ``name`` in the number format ``dtype``."""

    network: str
    document: Row

    @property
    def tables(self) -> dict[str, Row]:
        """Return item → table of the document; an item is a layer, or several that a kernel computes together."""
        return {table["item"]: table for table in self.document["tables"]}

    @property
    def convolution_tables(self) -> list[Row]:
        """Return the tables of single convolutions."""
        return [table for table in self.document["tables"] if table["is_op"]]

    def _timed_rows(self, item: str, dtype: str) -> list[Row]:
        rows = self.tables[item]["rows"] if item in self.tables else []
        return [row for row in rows if row["dtype"] == dtype and row["ms"]]

    def row(self, item: str, name: str, dtype: str = "float32") -> Row:
        """Return the timed row of a kernel on an item (a layer or fused layers); {} if there is none."""
        return first_row(self._timed_rows(item, dtype), name=name)

    def total(self, name: str, dtype: str = "float32", images: int | None = None) -> Row:
        """Return a kernel's row with the convolutions' summed time, for ``images`` images (None: the main batch)."""
        measured = self.document if images is None else first_row(self.document["batches"], images=images)
        return first_row(measured.get("totals", ()), name=name, dtype=dtype)

    def best_total(self, dtype: str) -> Row:
        """Return the row of our kernel whose times, summed over the convolutions, are the shortest."""
        rows = self.document["totals"]
        return fastest_row((row for row in rows if row["kind"] == OURS and row["dtype"] == dtype), "sum_ms")

    def ms(self, name: str, dtype: str = "float32", item: str | None = None) -> float | None:
        """Return a kernel's ms on a layer, ``item``, or (None) summed over the convolutions; None if not measured."""
        ms: float | None = self.row(item, name, dtype).get("ms") if item else self.total(name, dtype).get("sum_ms")
        return ms

    def fastest_row_of_item(self, item: str, dtype: str) -> Row:
        """Return the row of our fastest kernel on a layer or fused layers, except the kernel for ``--latency``."""
        rows = self._timed_rows(item, dtype)
        return fastest_row(row for row in rows if row["kind"] == OURS and row["name"] != LATENCY_KERNEL)

    def peak_bound_ms(self, dtype: str) -> float | None:
        """Return the shortest possible time in ms of the convolutions at the measured peaks; None if one was not timed.

        A convolution takes at least the time of its arithmetic, and at least the time to move each array once.
        """
        floors = []
        for table in self.convolution_tables:
            timed = [
                row for row in self._timed_rows(table["item"], dtype) if row["kind"] != CPU and row["rates"]["share"]
            ]
            timed = [row for row in timed if row.get("work", 1) == 1]  # computes all products of the layer
            if not timed:
                return None
            floors.append(min(row["ms"] * row["rates"]["share"] for row in timed))  # with the fastest instructions
        return sum(floors)


class Figures(dict[str, dict[str, Any]]):
    """File name → document; each file in ``folder`` is read and checked at its first use."""

    def __init__(self, folder: Path = FIGURES) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> dict[str, Any]:
        """Read, check and return a document. Raises MissingError if the file is missing, UserError if it is bad."""
        path = self._folder / name
        if not may_exist(path):
            remedy = f"run {command_for_file(name)}" if name in FILES | MODULES else "restore it from the repository"
            raise MissingError(f"{path} is missing: {remedy}")
        self[name] = read_json(path, file_content_check(name), "make it again")
        return self[name]

    def document_or_none(self, name: str) -> dict[str, Any] | None:
        """Return the document in the file ``name``, or None if the file does not exist yet."""
        try:
            return self[name]
        except MissingError:
            return None

    @property
    def comparisons(self) -> dict[tuple[str, int, str, str], tuple[str, Row]]:
        """Return (network, batch size, precision, card such as ``H100``) → file name, comparison with other systems.

        If several files have the same key, the latest counts.
        """
        stored = {path.name for path in self._folder.glob(COMPARISONS)}
        names = [name for name in {*stored, *self} if fnmatch(name, COMPARISONS)]
        names.sort(key=lambda name: (str(self[name]["date"]), name))
        found = ((name, one) for name in names for one in self[name]["comparisons"])
        return {
            (one["network"], one["images"], row["precision"], short_card_name(self[name])): (name, one)
            for name, one in found
            for row in one["rows"]
            if row["engine"] == OURSELVES
        }

    def bench(self, network: str) -> Bench:
        """Return the bench document of a network. Raises MissingError."""
        return Bench(network, self[BENCH[network]])

    @property
    def benches(self) -> Mapping[str, Bench]:
        """Return network → bench document, for all of ``NETWORKS``. Raises MissingError."""
        return {network: self.bench(network) for network in NETWORKS}
