"""Rank a kernel among the steps without a GPU: count its loads in a program built by g++, and predict its time."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from app.base.errors import UserError
from app.kernels.problems import ConvProblem, LinearProblem
from app.kernels.variant import Variant
from app.lab.checking.cases import Case, Fault
from app.ladder.card import EXAMPLE, Card, layer_problems
from app.ladder.counting import evaluate_counts, predict_layer_time
from app.ladder.emulation.program import CALLING, build_variant
from app.ladder.formulas import formula_variables
from app.ladder.lessons import Step, ladder_steps
from app.ladder.stored import load_stored_card
from app.records.kernels import Place
from app.terminal.text import Column, format_ms, paragraph, table

Product = ConvProblem | LinearProblem
# Operation → the layer of lenet5 whose loads are counted, and the images that the program runs.
LAYERS = {"conv": ("conv2", 4), "gemm": ("fc1", 64)}
TYPE, BATCH, ARCH = "float32", 10_000, "sm_90a"
COMPARED = ("products", "global_loads", "copies", "shared_loads", "constant_loads")
SLOWDOWN = 5  # a run that counts loads may take so many times as long
_COUNTS = re.compile(r"^COUNTS (?P<global>\d+) (?P<shared>\d+) (?P<constant>\d+)$", re.MULTILINE)


def rank_by_predicted_time(row: Variant) -> list[Place]:
    """Return ``row`` and the ladder's float32 steps of its operation, with loads and times, by predicted time.

    The loads of ``row`` are counted in an emulated run; those of the steps come from their lessons' formulas. All times
    are predicted from loads and products alone. Raises UserError.
    """
    layer, images = LAYERS.get(row.operation, ("", 0))
    problem = dict(layer_problems(EXAMPLE, row.operation, TYPE)).get(layer)
    reason = f"computes {row.operation}" if problem is None else row.refusal_reason(problem, ARCH)
    if reason is not None or problem is None:
        counted = " or ".join(f"{name} ({operation})" for operation, (name, _) in LAYERS.items())
        raise UserError(f"--counts counts on {counted} of {EXAMPLE} in fp32, but {row.name} {reason}: leave it out")
    counts = {name: repr(loads) for name, loads in count_loads(row, problem, images).items()}
    steps = [step for step in ladder_steps(row.operation) if TYPE in step.row.dtypes and not step.row.needs_cublas]
    card = load_stored_card(EXAMPLE)
    found = [_predict_row(card, steps[0], row, row.name, problem, counts)]
    for step in steps:
        if step.row.refusal_reason(problem, ARCH) is None:
            name = f"{step.row.step:02} {step.row.name}"
            found.append(_predict_row(card, step, step.row, name, problem, step.lesson.counts))
    return sorted(found, key=lambda place: place["predicted_ms"])


def _predict_row(card: Card, step: Step, row: Variant, name: str, problem: Product, counts: Mapping[str, str]) -> Place:
    """Return the loads and predicted time of ``row``. step: uses the same instructions. counts: formulas by name."""
    names = formula_variables(row, problem, {}, BATCH, card.device["multiprocessors"])
    found = evaluate_counts(counts, problem, names, step.row.instructions, None)
    # The emulated run counts nothing else, so nothing else may count for the steps: a copy of a step equals the step.
    found = evaluate_counts({one: repr(found[one]) for one in COMPARED}, problem, names, step.row.instructions, None)
    return {
        "name": name,
        "global_loads": (found["global_loads"] + found["copies"]) / found["products"],
        "shared_loads": (found["shared_loads"] + found["constant_loads"]) / found["products"],
        "predicted_ms": predict_layer_time(found, names, card.peak_rates(EXAMPLE, step)).ms,
    }


def count_loads(row: Variant, problem: Product, images: int) -> dict[str, float]:
    """Emulate a run; return ``global_loads``, ``shared_loads``, ``constant_loads`` per output. Raises UserError."""
    inputs = Case(row, problem, images).inputs()
    with TemporaryDirectory() as folder:
        built = build_variant(row, problem, {}, images, Path(folder) / "counted", counting=CALLING)
        try:
            done = replace(built, seconds=SLOWDOWN * built.seconds).execute(inputs, low=False)
        except Fault as fault:
            raise UserError(f"the loads of {row.name} were not counted: {fault}") from None
    counted = [*_COUNTS.finditer(done.stderr.decode(errors="replace"))]
    if not counted:
        raise UserError(f"the loads of {row.name} were not counted: it ends its program")
    outputs = images * sum(argument.per_image for argument in built.outputs)
    last = counted[-1].groupdict()  # earlier matches may be the kernel's own output
    return {f"{memory}_loads": int(loads) / outputs for memory, loads in last.items()}


def ranking_lines(places: Sequence[Place], operation: str, name: str, width: int) -> list[str]:
    """Return the ranking as lines of a table, and how to read it. name: of the kernel that the table marks."""
    columns = [Column("step", left=True), Column("global"), Column("shared"), Column("predicted ms"), Column("", True)]
    cells = [
        [
            place["name"],
            f"{place['global_loads']:.3f}",
            f"{place['shared_loads']:.3f}",
            format_ms(place["predicted_ms"]),
            "<-- yours" if place["name"] == name else "",
        ]
        for place in places
    ]
    at = 1 + next(index for index, place in enumerate(places) if place["name"] == name)
    title = f"{name} by its loads: place {at} of {len(places)} on {LAYERS[operation][0]} of {EXAMPLE}, {BATCH:,} images"
    how = (
        "global, shared: loads from global memory, and from shared or constant memory, for each multiply-add. "
        "predicted: how long the busiest part of an H100 needs for so many loads and products. Mostly "
        "this is the load pipe, which serves both memories alike: a tile alone moves loads from one column to the "
        "other; to need fewer, let a thread use each load for several outputs. Bank conflicts and waiting count for no "
        "row; times on a card are longer: bench."
    )
    return [*paragraph(title, width), *table(columns, cells, width), "", *paragraph(how, width)]
