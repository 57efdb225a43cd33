"""One card's measurements, as pages need them: times of ``bench``, loops of the machine code, hardware counters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from app.bench.document import Row, first_row
from app.bench.graphs import network_graph
from app.bench.ladder.cases import network_items
from app.bench.resources import SM_LIMITS
from app.cuda.compiler import architecture_number
from app.kernels.problems import ConvProblem, LinearProblem
from app.lessons.counting import LANES, Prediction, Speeds, count, predict, products_of
from app.lessons.formulas import Number, names_of
from app.lessons.steps import Step

SHOWN = ("lenet5", "fa19")  # networks of the pages' tables, where they were measured
FIRST, LATER = "conv1", "conv2"  # layers whose machine code was looked at


@dataclass(frozen=True)
class Layer:
    """One step on one layer: what it counts, what that predicts, and what was measured.

    parameters: the compile-time constants that ran. ms: None where it was not measured; counters: empty likewise.
    """

    network: str
    name: str
    problem: ConvProblem | LinearProblem
    names: Mapping[str, Number]
    counts: Mapping[str, Number]
    prediction: Prediction
    ms: float | None
    resources: Row
    loop: Row
    counters: Row

    @property
    def title(self) -> str:
        """Network and layer."""
        return f"{self.network} {self.name}"


@dataclass(frozen=True)
class Card:
    """Documents about one card, as the program writes them.

    benches: network → ``bench --json``. kernels: ``kernels --resources --instructions --json``. counters: network →
    ``profile --every-step --json``; a network may be missing. reports, timelines: precision → the main job's report of
    lenet5, and ``profile --timeline --json``; likewise.
    """

    benches: Mapping[str, Row]
    kernels: Row
    counters: Mapping[str, Row] = field(default_factory=dict)
    reports: Mapping[str, Row] = field(default_factory=dict)
    timelines: Mapping[str, Row] = field(default_factory=dict)

    @property
    def device(self) -> Row:
        """The card."""
        found: Row = next(iter(self.benches.values()))["device"]
        return found

    @property
    def networks(self) -> list[str]:
        """The networks to show: those of ``SHOWN`` that were measured, else all."""
        return [name for name in SHOWN if name in self.benches] or [*self.benches]

    def speeds(self, network: str, step: Step) -> Speeds:
        """Return what the card can do with the step's instructions, by the peaks of the network's run."""
        bench = self.benches[network]
        number = architecture_number(bench["device"]["architecture"])
        peaks, sms = bench["peaks"]["tflops"], bench["device"]["multiprocessors"]
        best = peaks.get(f"{step.dtype} {step.row.instructions}") or peaks.get(step.dtype) or peaks["float32"]
        if step.row.instructions == "hfma2" and f"{step.dtype} hfma2" not in peaks:
            best = peaks["float32"]  # its multiply-adds per instruction make up for half the instructions
        return Speeds(
            best * 1e12 / 2,
            bench["peaks"]["gbytes_per_s"] * 1e9,
            peaks["float32"] * 1e12 / 2 / LANES.get(number, 128) / sms,
            sms,
            sms * SM_LIMITS.get(number, SM_LIMITS[90])[0],
        )

    def layers(self, step: Step) -> Iterator[Layer]:
        """Return the step on every layer of its kind, network by network."""
        for network in self.networks:
            for item, problem in problems(network, step.row.operation, step.dtype):
                if found := self._layer(step, network, item, problem):
                    yield found

    def _layer(self, step: Step, network: str, item: str, problem: ConvProblem | LinearProblem) -> Layer | None:
        bench = self.benches[network]
        tables = [table for table in bench["tables"] if table["item"] == item]
        rows = tables[0]["rows"] if tables else []
        row = first_row(rows, name=step.row.name, dtype=step.dtype, step=step.row.step)
        if step.row.refusal(problem, bench["device"]["architecture"], row.get("settings")) is not None:
            return None
        sms = bench["device"]["multiprocessors"]
        names = names_of(step.row, problem, row.get("settings", {}), bench["images"], sms)
        first = isinstance(problem, ConvProblem) and problem.channels == 1
        like = FIRST if first else LATER if isinstance(problem, ConvProblem) else "fc1"
        about = {"operation": step.row.operation, "name": step.row.name, "layer": like}
        loop = first_row(self.kernels.get("instructions", ()), **about)
        compiled = [one for one in self.kernels.get("resources", ()) if "registers" in one]
        resources = first_row(compiled, **about, entry=step.row.entry) or first_row(compiled, **about)
        counts = count(step.lesson.counts, problem, names, step.row.instructions, _slots(loop, step))
        counted = self.counters.get(network, {}).get("rows", ())
        return Layer(
            network,
            item,
            problem,
            names,
            counts,
            predict(counts, names, self.speeds(network, step)),
            row.get("ms"),
            resources,
            loop,
            first_row(counted, operation=step.row.operation, name=step.row.name, layer=item),
        )


def _slots(loop: Row, step: Step) -> float | None:
    """Instructions per product in the hottest loop of the machine code."""
    kind = step.row.instructions
    if not loop or kind == "wgmma":  # one instruction of many sizes, and others' work in the same loop
        return None
    return loop["instructions"] / loop["multiply"] / products_of(kind, step.dtype)


@cache
def problems(network: str, operation: str, dtype: str) -> Sequence[tuple[str, Any]]:
    """Return the layers of an operation, each alone, with their problems in that arithmetic."""
    return [
        (item.name, item.problems[dtype])
        for item in network_items(network_graph(network))
        if item.operation == operation and len(item.layers) == 1 and dtype in item.problems
    ]
