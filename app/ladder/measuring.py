"""Time every step of the ladders on the current GPU, in order, as ``bench`` times a kernel."""

from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from app.base.errors import UserError
from app.cuda.memory import DeviceMemoryError
from app.kernels.problems import Problem
from app.kernels.registry import served_form
from app.lab.bench import peak
from app.lab.bench.cases import Item, network_items
from app.lab.bench.compiling import compile_variants
from app.lab.bench.ladder import ItemTimer
from app.lab.bench.results import Result, Table, convolution_totals, table_record
from app.lab.bench.trial import Trial
from app.lab.document import Row, utc_date
from app.ladder.lessons import LADDERS, Step, all_steps
from app.main_job.statistics import describe_stopping_rule
from app.network.graph import Graph
from app.planning import tuning

NOISE, L2 = 0.02, "cold"  # twice bench's noise limit: the steps differ by more
Rung = tuple[Step, Item]  # a step, and a layer to time it on


def measure_steps(graph: Graph, images: int, card: Row) -> dict[str, Any]:
    """Check and time each step on each layer that it can compute; return a bench document.

    images: number in a launch. card: record of the GPU. Raises UserError, also if the card's memory is too small.
    """
    arch, known = card["architecture"], tuning.load(card["name"])
    items = [item for item in network_items(graph) if len(item.layers) == 1 and item.operation in LADDERS]
    rungs = [
        (step, item)
        for step in all_steps()
        for item in items
        if item.operation == step.row.operation and step.dtype in item.problems
    ]
    compile_variants(
        [(served_form(step.row, item.problems[step.dtype]), step.row) for step, item in rungs], arch, known
    )
    peaks = peak.measure_peaks(arch)
    rows: dict[str, list[Result]] = {item.name: [] for item in items}
    timer = ItemTimer(arch, known, NOISE, L2, None, False, lambda: None)
    with tqdm(rungs, desc="ladder", unit=" rows", disable=None) as bar:
        try:
            for (step, item), result in zip(bar, _time_steps(rungs, timer, images), strict=True):
                bar.set_description(f"{step.title}, {item.name}")
                rows[item.name].append(result)
        except DeviceMemoryError:
            raise UserError(
                f"{images:,} images do not fit in the card's free memory: choose fewer by --batch"
            ) from None
    tables = [
        Table(item.name, item.operation, item.is_single_convolution, images, item.problems, (*rows[item.name],))
        for item in items
    ]
    return {
        "date": utc_date(),
        "network": graph.network.name,
        "device": card,
        "images": images,
        "settings": {"noise": NOISE, "l2": L2, "rule": describe_stopping_rule(NOISE, L2)},
        "peaks": peaks,
        "tables": [table_record(table, peaks) for table in tables],
        "totals": convolution_totals(tables),
    }


def _time_steps(rungs: list[Rung], timer: ItemTimer, images: int) -> Iterator[Result]:
    """Check and time each step on each layer; yield the results. Steps of one number format share a layer's data."""
    trials: dict[Problem, Trial] = {}
    before = ("", "")
    for step, item in rungs:
        if before != (kind := (step.row.operation, step.dtype)):
            trials.clear()
            before = kind
        problem = served_form(step.row, item.problems[step.dtype])
        if problem not in trials:
            trials[problem] = Trial(problem, images, timer.arch)
        yield timer.time_variant(trials[problem], step.row)
