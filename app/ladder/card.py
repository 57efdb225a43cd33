"""Collect one card's measurements for the pages: times of ``bench``, loops of machine code, hardware counters."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache, cached_property
from typing import Any

from app.base.frozen import Frozen
from app.cuda.compiler import architecture_number
from app.kernels.problems import ConvProblem, LinearProblem
from app.kernels.registry import served_form
from app.lab.bench.cases import network_items
from app.lab.document import Row, first_row
from app.lab.profile.counters import normalize_count
from app.ladder.counting import LANES, Prediction, Speeds, evaluate_counts, predict_layer_time, products_per_instruction
from app.ladder.formulas import Number, formula_variables
from app.ladder.lessons import Step
from app.network.graph import network_graph
from app.tools.resources import EXAMPLES, SM_LIMITS

SHOWN = ("lenet5", "fa19")  # networks shown in the pages' tables, if they were measured
EXAMPLE = EXAMPLES[0][0].name  # the network whose layers' machine code was examined
FIRST, LATER = "conv1", "conv2"


class Layer(Frozen):
    """A step's kernel on one layer: its counts, the time predicted from them, and the measurements.

    names: name in formulas → value. counts: per output. example: a layer's name. ms: None if it was not measured.
    resources, loop: of the compiled kernel, and of its hottest loop, on the layer ``example`` of the network
    ``EXAMPLE``. counters: hardware counters. These three may be empty. executed: instructions of the whole kernel per
    output, as the hardware counted them, or None. per_product: instructions per multiply-add in ``loop``, or None.
    tuned: parameters of the timed kernel that differ from those of ``resources`` and ``loop``.
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
    executed: float | None
    per_product: float | None
    example: str
    tuned: Mapping[str, Any]

    @property
    def issue_slot_source(self) -> str:
        """Return the source of the number of issue slots: ``executed``, ``loop`` (in machine code) or ``formula``."""
        return "executed" if self.executed is not None else "loop" if self.per_product is not None else "formula"

    @property
    def title(self) -> str:
        """Return the layer's name after its network's, such as ``lenet5 conv1``."""
        return f"{self.network} {self.name}"


class Card(Frozen):
    """The JSON documents with measurements of one GPU, as the program writes them.

    benches: network → ``bench --json``. kernels: ``kernels --resources --instructions --json``. counters: network →
    ``profile --every-step --json``; a network may be missing. reports, timelines: precision → report of ``main.py``
    with lenet5, and ``profile --timeline --json``; a precision may be missing. alike: another GPU of the same name,
    whose counted instructions also hold for this one.
    """

    benches: Mapping[str, Row]
    kernels: Row
    counters: Mapping[str, Row] = field(default_factory=dict)
    reports: Mapping[str, Row] = field(default_factory=dict)
    timelines: Mapping[str, Row] = field(default_factory=dict)
    alike: "Card | None" = None

    @property
    def device(self) -> Row:
        """Return the record of the GPU in the first ``bench`` document."""
        found: Row = next(iter(self.benches.values()))["device"]
        return found

    @property
    def networks(self) -> list[str]:
        """Return the networks to show: those of ``SHOWN`` that were measured, otherwise all."""
        return [name for name in SHOWN if name in self.benches] or [*self.benches]

    def peak_rates(self, network: str, step: Step) -> Speeds:
        """Return the card's peak rates for a step's instructions, as measured in the network's bench document."""
        bench = self.benches[network]
        number = architecture_number(bench["device"]["architecture"])
        peaks, sms = bench["peaks"]["tflops"], bench["device"]["multiprocessors"]
        best = peaks.get(f"{step.dtype} {step.row.instructions}") or peaks.get(step.dtype) or peaks["float32"]
        if step.row.instructions == "hfma2" and f"{step.dtype} hfma2" not in peaks:
            best = peaks["float32"]  # it executes half the instructions, each with two multiply-adds
        return Speeds(
            best * 1e12 / 2,
            bench["peaks"]["gbytes_per_s"] * 1e9,
            peaks["float32"] * 1e12 / 2 / LANES.get(number, 128) / sms,
            sms,
            sms * SM_LIMITS.get(number, SM_LIMITS[90])[0],
        )

    def layers(self, step: Step) -> Sequence[Layer]:
        """Return each layer that the step can compute, network by network, with the step's counts and measurements."""
        if step.page_name not in self._layers_of_steps:
            self._layers_of_steps[step.page_name] = [
                found
                for network in self.networks
                for item, problem in layer_problems(network, step.row.operation, step.dtype)
                if (found := self._layer_of_step(step, network, item, problem))
            ]
        return self._layers_of_steps[step.page_name]

    @cached_property
    def _layers_of_steps(self) -> dict[str, Sequence[Layer]]:
        """Cache of ``layers``: page name of a step → its layers, which several tables of the page need."""
        return {}

    def _layer_of_step(self, step: Step, network: str, item: str, problem: ConvProblem | LinearProblem) -> Layer | None:
        bench, problem = self.benches[network], served_form(step.row, problem)
        row = self._bench_row(step, network, item)
        if step.row.refusal_reason(problem, bench["device"]["architecture"], row.get("settings")) is not None:
            return None
        sms = bench["device"]["multiprocessors"]
        names = formula_variables(step.row, problem, row.get("settings", {}), bench["images"], sms)
        first = isinstance(problem, ConvProblem) and problem.channels == 1
        like = FIRST if first else LATER if isinstance(problem, ConvProblem) else "fc1"
        about = {"operation": step.row.operation, "name": step.row.name, "layer": like}
        # In a kernel with a ring of stages, the jumps of barrier waits span several loops, which would look like one.
        loop = {} if step.row.instructions == "wgmma" else first_row(self.kernels.get("instructions", ()), **about)
        compiled = [one for one in self.kernels.get("resources", ()) if "registers" in one]
        resources = first_row(compiled, **about, entry=step.row.entry) or first_row(compiled, **about)
        executed = self._executed_instructions(step, network, item, names["OUTPUTS"])
        other = self.alike
        if executed is None and other and other._bench_row(step, network, item).get("settings") == row.get("settings"):
            executed = other._executed_instructions(step, network, item, names["OUTPUTS"])
        per_product, defaults = _loop_instructions_per_product(loop, step), step.row.defaults(problem)
        counts = evaluate_counts(step.lesson.counts, problem, names, step.row.instructions, per_product, executed)
        return Layer(
            network,
            item,
            problem,
            names,
            counts,
            predict_layer_time(counts, names, self.peak_rates(network, step)),
            row.get("ms"),
            resources,
            loop,
            self._layer_counters(step, network, item),
            executed,
            per_product,
            like,
            {name: value for name, value in row.get("settings", {}).items() if defaults.get(name) != value},
        )

    def _bench_row(self, step: Step, network: str, item: str) -> Row:
        """Return the bench document's row of the step on the layer ``item``; empty if there is none."""
        tables = (table for table in self.benches.get(network, {}).get("tables", ()) if table["item"] == item)
        rows = (row for table in tables for row in table["rows"])
        return first_row(rows, name=step.row.name, dtype=step.dtype)

    def _layer_counters(self, step: Step, network: str, item: str) -> Row:
        rows = self.counters.get(network, {}).get("rows", ())
        return first_row(rows, operation=step.row.operation, name=step.row.name, layer=item)

    def _executed_instructions(self, step: Step, network: str, item: str, outputs: Number) -> float | None:
        counted = self._layer_counters(step, network, item)
        value = counted["counts"].get("instructions") if counted else None
        return None if value is None else normalize_count("instructions", value, outputs * counted["images"])


def _loop_instructions_per_product(loop: Row, step: Step) -> float | None:
    """Return the instructions per multiply-add in the hottest loop of the machine code; None if there is no loop."""
    if not loop:
        return None
    return loop["instructions"] / loop["multiply"] / products_per_instruction(step.row.instructions, step.dtype)


@cache
def layer_problems(network: str, operation: str, dtype: str) -> Sequence[tuple[str, Any]]:
    """Return (name, problem) of each unfused layer with this operation, in the arithmetic type ``dtype``."""
    return [
        (item.name, item.problems[dtype])
        for item in network_items(network_graph(network))
        if item.operation == operation and len(item.layers) == 1 and dtype in item.problems
    ]
