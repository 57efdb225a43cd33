"""Test the lessons: every row has one, formulas evaluate, and sentences agree with counts and machine code."""

import re
import shlex
from dataclasses import replace

import pytest

from app.commands.parsers import COMMANDS, load_parser
from app.kernels import registry
from app.kernels.plain_problems import bytes_moved
from app.kernels.problems import ConvProblem
from app.lab.profile.counters import COUNTERS, normalize_count
from app.ladder import tiles
from app.ladder.card import Card
from app.ladder.counting import (
    COUNTS,
    PARTS,
    ROUND_TRIP,
    Speeds,
    evaluate_counts,
    predict_layer_time,
    products_per_instruction,
)
from app.ladder.formulas import FUNCTIONS, evaluate_formula, fill_formulas, formula_variables
from app.ladder.lessons import LADDERS, LESSONS, Step, all_steps, lesson_path
from app.ladder.pages import Pages
from app.ladder.tables import COPY
from tests.ladder.conftest import BY_NAME, STEPS


def test_every_row_has_a_lesson_and_every_lesson_a_row() -> None:
    rows = {lesson_path(row) for operation in LADDERS for row in registry.variants(operation) if row.taught}
    assert rows == {*LESSONS.rglob("*.toml")}, "write a lesson for each new step, see CONTRIBUTING.md"
    assert len(all_steps()) == len(rows), "since names no step"


@STEPS
def test_no_measured_time_is_below_its_prediction(step: Step, card: Card) -> None:
    layers = card.layers(step)
    assert layers and set(step.lesson.bounded_by) <= {*PARTS}
    for layer in layers:
        assert layer.ms is None or layer.ms >= layer.prediction.ms, layer.title


@STEPS
def test_formulas_in_lessons_evaluate_and_sentences_have_no_measured_figures(step: Step, card: Card) -> None:
    lesson, detail = step.lesson, filter(None, [step.lesson.detail])  # few lessons have a detail
    for text in (lesson.change, *detail, lesson.bound, lesson.proof, lesson.exercise.task, lesson.exercise.answer):
        assert not re.search(r"\b[Ss]teps? \d", text), "name the step: numbers change"
        assert not re.findall(r"\d ?(?:ms|µs|%|TFLOP|GB)|\w+second", re.sub(r"\{[^}]*\}", "", text))
        assert not text[0].islower() and text.endswith((".", "?"))
        for layer in card.layers(step):
            assert "{" not in fill_formulas(text, layer.names)
            assert tiles.draw_step(step, layer.names)
    assert set(lesson.proven_by) <= {*COUNTERS}


@STEPS
def test_shares_of_multiplying_instructions_are_as_lessons_say(step: Step, card: Card) -> None:
    """Check "nearly all instructions" against the hottest loop, and "most" against the layer with the longest sums."""
    layers = card.layers(step)
    for sentence in re.split(r"(?<=[.:])\s", f"{step.lesson.bound} {step.lesson.proof}"):
        if re.search(r"[Nn]early (all|every)", sentence) and "instruction" in sentence:
            assert "hottest loop" in sentence
            assert any(layer.loop and layer.loop["multiply"] > 0.9 * layer.loop["instructions"] for layer in layers)
        if re.search(r"[Mm]ost of (which|what)", sentence):
            longest = max(layers, key=lambda layer: layer.names["DEPTH"])
            assert longest.counts["products"] > 0.5 * longest.counts["slots"]


@STEPS
def test_memory_bytes_include_intermediate_results_of_several_kernels(step: Step, card: Card) -> None:
    for layer in card.layers(step):
        launches = step.row.launch_config(layer.problem, step.row.defaults(layer.problem)).launches
        entries = {one.entry for one in launches if one.grid(int(layer.names["BATCH"]))[0]}
        several = step.row.needs_cublas or entries - {"", step.row.entry}
        outputs = layer.names["OUTPUTS"] * layer.names["BATCH"]
        least = bytes_moved(layer.problem.arguments(), int(layer.names["BATCH"])) / outputs
        assert bool(several) == (layer.counts["memory_bytes"] > least), layer.title


@STEPS
def test_exercises_name_commands_that_exist(step: Step) -> None:
    program, *arguments = shlex.split(step.lesson.exercise.command)[1:]
    assert program == "main.py"
    name = arguments[0] if arguments[0] in COMMANDS else "run"
    load_parser(name).parse_args(arguments[name != "run" :])


@STEPS
def test_shared_loads_agree_with_the_machine_code(step: Step, card: Card) -> None:
    """Compare a lesson's shared loads per multiply-add with those of the hottest loop in machine code."""
    checked = 0
    for layer in card.layers(step):
        loop, per = layer.loop, products_per_instruction(step.row.instructions, step.dtype)
        if not loop or step.row.instructions == "wgmma" or layer.network != "lenet5" or layer.name == "fc2":
            continue
        found = loop["shared_load"] / loop["multiply"] / per
        names = formula_variables(step.row, layer.problem, {}, 10_000, 132)
        counts = evaluate_counts(step.lesson.counts, layer.problem, names, step.row.instructions, None)
        padded = counts["waste"] if per > 2 else 1  # tensor cores also multiply the padding
        told = counts["shared_loads"] / counts["products"] / padded
        most = told + COPY * counts["copies"] / counts["products"] / padded
        assert told * 0.75 <= found <= most * 1.25, layer.title  # some loads in the loop happen rarely
        checked += 1
    assert checked or step.row.needs_cublas or step.row.instructions == "wgmma"


def test_counts_of_a_layer_counted_by_hand(card: Card) -> None:
    """Compare the counts of ``direct`` on lenet5's conv2 with numbers computed by hand."""
    problem, step = ConvProblem(32, 12, 12, 64, 5), BY_NAME["conv-direct"]
    names = formula_variables(step.row, problem, {}, 10_000, 132)
    counts = evaluate_counts(step.lesson.counts, problem, names, "fma", None)
    assert [counts[name] for name in ("products", "global_loads", "slots", "waste")] == [800, 1600, 2400, 1]
    # A warp has 4 rows of 8 pixels; its 44 neighbouring pixels of 4 bytes touch 1 + 172 / 128 cache lines, a tap one.
    assert counts["wavefronts"] == 800 * (1 + 172 / 128 + 1)
    assert counts["memory_bytes"] == (10_000 * 4 * (32 * 144 + 64 * 64) + 4 * 800 * 64) / (10_000 * 64 * 64)
    speeds = Speeds(products=32e12, bytes=3e12, cycles=2e9, multiprocessors=132, resident_threads=132 * 2048)
    parts = predict_layer_time(counts, names, speeds).parts
    outputs = 10_000 * 64 * 64
    assert parts["arithmetic"] == pytest.approx(outputs * 800 / 32e9)
    assert parts["issue"] == pytest.approx(outputs * 2400 / 32 / (4 * 132 * 2e6))
    assert parts["loads"] == pytest.approx(outputs * counts["wavefronts"] / 32 / (132 * 2e6))
    assert set(COUNTS) == {*counts} and set(PARTS) == {*parts}


# Function that formulas may call → arguments → expected value.
CALLS: dict[str, dict[tuple[int, ...], float]] = {
    # A cache line has 128 bytes, and a span of 4 bytes lies in one line; rows far apart share no line.
    "pixel_lines": {(32, 36, 4): 1 + 124 / 128, (8, 12, 4): 1 + 172 / 128, (8, 64, 4): 4 * (1 + 28 / 128)},
    "conflicts": {(32, 36, 1): 1, (16, 32, 1): 2, (8, 32, 1): 4, (32, 64, 2): 2},  # stride 2: half of the banks
    "cycles": {
        # With 16 bytes a thread: all read the same, 4 groups of 8 read the same, only 8 read, each reads its own.
        (32, 4, 32, 0): 2,
        (32, 4, 8, 0, 4, 4): 2,
        (32, 4, 8, 4): 1,
        (32, 4, 32, 4): 4,
        (32, 4, 8, 4, 4, 0): 4,
        (32, 4, 32, 32): 32,
        (32, 2, 32, 2): 2,
        (64, 1, 32, 1, 2, 0): 1,
        (40, 1, 32, 32, 2, 0): (32 + 8) / 2,  # the last warp has 8 threads
        (32, 1, 16, 1, 2, 32): 2,
    },
    "input_products": {(5,): 16},
    "banks": {(8, 16): 2, (8, 17): 8},
    "vector": {(8,): 4, (6,): 2, (5,): 1},
}


def test_formula_functions_return_known_values() -> None:
    found = {name: {given: FUNCTIONS[name](*given) for given in calls} for name, calls in CALLS.items()}
    assert found == CALLS and FUNCTIONS.keys() - CALLS.keys() == {"ceil", "max", "min"}


def test_fill_formulas_and_errors_of_formulas() -> None:
    assert fill_formulas("{2 * K} and {1 / 3:.2f}", {"K": 5}) == "10 and 0.33"
    for wrong in ("K +", "unknown", "1 / 0", "'text'", "__import__('os')"):
        with pytest.raises(ValueError, match=re.escape(wrong)):
            evaluate_formula(wrong, {"K": 5})


def test_a_multiply_add_is_two_operations(card: Card) -> None:
    peak = card.benches["lenet5"]["peaks"]["tflops"]["float32"]
    assert card.peak_rates("lenet5", BY_NAME["conv-direct"]).products == pytest.approx(peak * 1e12 / 2)


def test_a_page_shows_counters_or_how_to_read_them(card: Card) -> None:
    """Build pages from counters as ``profile --every-step`` writes them; a step without counters shows that command."""
    counts = {**dict.fromkeys(COUNTERS, 50.0), "global_loads": 1600 * 4096 * 100 / 32, "DRAM": None}
    row = {"operation": "conv", "name": "direct", "layer": "conv2", "images": 100, "counts": counts}
    counted = Card(card.benches, card.kernels, {"lenet5": {"rows": [row], "note": None}})
    text = Pages(counted, "test").step_page(BY_NAME["conv-direct"]).html
    shown = re.search(r"loads from global memory, per output</th><td class=\"number\">([^<]*)<", text)
    assert shown and shown[1] == "1,600"
    assert "No hardware counters" not in text and re.search(r"device memory, of its peak, %</th><td[^>]*>–<", text)
    assert "profile --every-step" in Pages(counted, "test").step_page(BY_NAME["conv-constant"]).html
    assert normalize_count("dram_read", 800.0, 100) == 8 and normalize_count("DRAM", 40.0, 100) == 40


def test_without_counters_a_page_shows_busy_shares(card: Card) -> None:
    uncounted = replace(card, counters={})
    pages, step = Pages(uncounted, "test"), BY_NAME["conv-direct"]
    layers = uncounted.layers(step)
    row = re.search(r"In place of counters.*?Load pipe[^<]*</th>(.*?)</tr>", pages.step_page(step).html, re.DOTALL)
    assert row and re.findall(r">(\d+)%<", row[1]) == [
        f"{100 * layer.prediction.parts['loads'] / layer.ms:.0f}" for layer in layers if layer.ms
    ]


def test_pages_show_the_name_of_another_card(card: Card) -> None:
    bench = card.benches["lenet5"]
    device = {**bench["device"], "name": "Another Card", "multiprocessors": 66}
    pages = Pages(Card({"lenet5": {**bench, "device": device}}, {}), "ladder")
    text = pages.step_page(BY_NAME["conv-direct"]).html
    assert "Another Card" in text and "fa19" not in text and "<code>ladder</code>" in text
    assert "What the compiler made of it" not in text
    assert "Another Card" in pages.index_page().html


def test_latency_counts_round_trips_once_for_all_outputs_of_a_thread() -> None:
    """Predict a thread that loads a tile, waits once, and then multiplies for each of its 16 outputs."""
    counts = dict.fromkeys(COUNTS, 0) | {"waste": 1, "round_trips": 10}
    names = {"OUTPUTS": 16, "BATCH": 1, "BLOCKS": 1, "THREADS": 1}
    speeds = Speeds(products=1.0, bytes=1.0, cycles=1e3, multiprocessors=1, resident_threads=2048)
    assert predict_layer_time(counts, names, speeds).parts["latency"] == 10 * ROUND_TRIP


def test_wgmma_operands_of_sparse_products_are_read_longer_than_multiplied(card: Card) -> None:
    """Compute the clocks of reading operands and of multiplying: reading takes longer for the sparse kernel alone."""
    for name, terms in (("conv-warpgroup", 16), ("conv-warpgroup-sparse", 32)):
        layer = card.layers(BY_NAME[name])[0]
        pixels, names = 8 * layer.names["ROWS"], {**layer.names}
        for count, formula in BY_NAME[name].lesson.counts.items():
            names[count] = evaluate_formula(formula, names | {"products": layer.counts["products"]})
        operands = names["operands"]
        products = layer.counts["products"] / 16  # of a tile, 16 terms each
        assert products == layer.names["DEPTH"] / terms
        reading = operands * 64 * pixels / 128 / products
        assert reading == (2048 + 2 * terms * pixels) / 128
        assert (reading > pixels / 2) == (terms == 32)
