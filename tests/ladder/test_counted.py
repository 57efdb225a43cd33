"""Compare the counts that lessons give by formula with the hardware counters that are stored for the same layers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.lab.profile.counters import normalize_count
from app.ladder.card import Card, Layer
from app.ladder.formulas import format_exact
from app.ladder.lessons import Step, all_steps
from app.ladder.pages import Pages, lesson_to_html
from app.ladder.stored import stored_card
from app.ladder.tables import COPY, FACTOR, counter_differences, difference_reason, large_difference_reasons
from tests.ladder.conftest import BY_NAME, STEPS

# Counter → the count that foretells it, and how far it may lie from it.
FORETOLD = {
    "multiply_adds": ("products", 0.3),  # counted without idle lanes, formulas with them
    "global_loads": ("global_loads", 0.15),
    "shared_loads": ("shared_loads", 0.1),
    "shared_cycles": ("shared_cycles", 0.15),
}
# What a counter does not show, or shows otherwise, and why. An exception that no layer needs is an error.
EXCEPTIONS = {
    # Warps without a pixel leave at once; the waste is that of the blocks that they belong to.
    "conv-image-loop": ["multiply_adds", "global_loads"],
    "conv-half2": ["multiply_adds"],  # two halves a multiply-add, another instruction
    # mma is no multiply-add of a thread, either. Padded terms of the sum multiply, but load nothing from global memory;
    # with pairs of channels, or one channel, the words of a load lie in other banks than the formula takes.
    "conv-tensor-core": ["multiply_adds", "global_loads", "shared_loads", "shared_cycles"],
    "gemm-tensor-core": ["multiply_adds"],
    # wgmma is none, either, and reads shared memory by descriptors.
    **{name: ["multiply_adds"] for name in ("conv-warpgroup", "conv-warpgroup-sparse", "gemm-warpgroup")},
    # After short sums the exchange of sums costs twice the cycles of its formula; long sums hide that.
    "conv-toom-cook": ["shared_loads", "shared_cycles"],
}
# The hottest loop is not the whole kernel: where sums are short, and where sizes that are known at run time make the
# compiler add loops for remainders, several times as many instructions run.
RUN_TIME_SIZES = {"conv-direct", "conv-shared-tile", "conv-constant", "conv-shared-constant"}
# A block for each map, or for a few: the input passes from device memory again where the L2 cache does not hold it.
READ_AGAIN = {*RUN_TIME_SIZES, "conv-specialised", "conv-unrolled", "conv-half2"}
# Unit → its part of a prediction: a lesson names the part of each unit that is busy most of the time.
PART_OF = {"issue": "issue", "L1": "loads", "DRAM": "memory"}
BUSY = 75  # percent
# What lessons say that a step changes: a counter now ÷ in the step that it continues, at least and at most, on second
# convolutions and first products; below on first convolutions.
CHANGES: dict[str, dict[str, tuple[float, float]]] = {
    "conv-direct": {"global_loads": (0.9, 1.1), "occupancy": (4, 40), "issue": (4, 8)},
    "conv-shared-tile": {"global_loads": (0.05, 0.1), "instructions": (1, 1.3)},
    "conv-constant": {"global_loads": (0.5, 0.5), "instructions": (0.8, 0.9), "issue": (1, 1.2), "L1": (0.5, 1)},
    "conv-shared-constant": {"shared_loads": (0.5, 0.5), "instructions": (0.9, 1), "issue": (0.9, 1.1)},
    "conv-specialised": {"instructions": (0.85, 0.95)},
    "conv-unrolled": {"instructions": (0.3, 0.4), "shared_loads": (1, 1), "issue": (0.5, 0.7)},
    "conv-half2": {"instructions": (0.5, 0.6), "shared_loads": (0.5, 0.5)},
    "conv-implicit-gemm": {"dram_read": (0, 0.1), "dram_written": (0, 0.1)},
    "conv-register-column": {"shared_loads": (0.5625, 0.75)},
    "conv-register-square": {
        "shared_loads": (0.2, 0.25),
        "L1": (0.3, 0.55),
        "occupancy": (0.1, 1 / 3),
        "issue": (0.6, 1),
    },
    "conv-wide-loads": {"shared_loads": (0.25, 0.25), "shared_cycles": (0.75, 0.76), "issue": (1.1, 1.6)},
    "conv-register-tiled": {"shared_loads": (1, 1), "instructions": (0.8, 0.9)},
    "conv-tensor-core": {"tensor": (20, 200)},
    "conv-register-row": {"shared_loads": (0, 0.1), "instructions": (0.2, 0.3)},
    "conv-async-copies": {"global_loads": (0, 0), "issue": (1.05, 1.2), "shared_cycles": (0.95, 1.05)},
    "conv-toom-cook": {"multiply_adds": (0.6, 0.7), "instructions": (0.6, 0.85)},
    "gemm-shared-tiled": {"global_loads": (1 / 16, 1 / 15)},
    "gemm-register-column": {"shared_loads": (0.9, 0.93), "occupancy": (0, 0.5)},
    "gemm-register-square": {"shared_loads": (0.44, 0.45), "occupancy": (0, 0.5), "issue": (0, 0.6)},
    "gemm-wide-loads": {"shared_loads": (0.25, 0.25), "shared_cycles": (0.75, 0.75), "issue": (1.5, 2)},
    "gemm-register-tiled": {"shared_loads": (1, 1), "issue": (1.3, 1.6), "instructions": (0.7, 0.8)},
    "gemm-split-k": {"dram_read": (1.4, 5), "issue": (3, 5), "L1": (3, 4), "occupancy": (4, 6)},
    "gemm-warpgroup": {"tensor": (7, 20)},
}
ON_FIRST: dict[str, dict[str, tuple[float, float]]] = {
    "conv-constant": {"global_loads": (0.5, 0.5), "instructions": (0.9, 1), "issue": (1, 1.2), "L1": (0.5, 1)},
    "conv-specialised": {"instructions": (0.5, 0.6)},
    "conv-register-square": {"L1": (0.3, 0.55), "occupancy": (0.1, 1 / 3), "issue": (0.6, 1)},
    "conv-unrolled": {"instructions": (0.45, 0.55)},
    "conv-register-patch": {"DRAM": (1.3, 2), "L2": (0.9, 1.4)},
    "conv-toom-cook": {"instructions": (1.4, 1.8)},
}
# Times that lessons speak of: the step is faster than the one that it continues, or slower, on these layers.
FASTER = {
    "conv-toom-cook": ("lenet5 conv2", "fa19 conv2", "k7 conv2"),
    "conv-register-tiled": ("lenet5 conv2", "fa19 conv2"),
    "gemm-register-column": ("fa19 fc1",),
    "gemm-split-k": ("lenet5 fc1", "fa19 fc1"),
}
SLOWER = {
    "conv-shared-tile": ("lenet5 conv1", "lenet5 conv2", "fa19 conv1", "fa19 conv2"),
    "conv-toom-cook": ("lenet5 conv1", "fa19 conv1", "k7 conv1"),
    "conv-register-tiled": ("lenet5 conv1", "fa19 conv1"),
    "conv-register-block": ("lenet5 conv1", "k7 conv2"),
    "conv-async-copies": ("lenet5 conv1", "fa19 conv1"),
    "gemm-register-column": ("lenet5 fc1",),
    "gemm-wide-loads": ("lenet5 fc2",),
}


def _counted(card: Card, step: Step) -> Iterator[tuple[Layer, dict[str, float]]]:
    """Yield each layer with its counters per output, but the last layer, whose ten outputs fill no tile."""
    for layer in card.layers(step):
        if layer.counters and layer.name != "fc2":
            outputs = layer.names["OUTPUTS"] * layer.counters["images"]
            counts = layer.counters["counts"]
            yield layer, {name: normalize_count(name, value, outputs) for name, value in counts.items()}


def test_the_tables_name_steps_that_exist() -> None:
    """The entries of a renamed step would be compared with nothing."""
    assert {*EXCEPTIONS, *READ_AGAIN, *CHANGES, *ON_FIRST} <= {step.page_name for step in all_steps()}


@STEPS
def test_counts_are_those_of_the_hardware(step: Step, card: Card) -> None:
    """Per output, with the work that is wasted."""
    layers = [*_counted(card, step)]
    timed = any(layer.ms for layer in card.layers(step))
    assert layers or step.row.needs_cublas or not timed, "profile --every-step counts every kernel of ours"
    off = set()
    for layer, counted in layers:
        waste = layer.counts["waste"]
        for counter, (count, tolerance) in FORETOLD.items():
            least = layer.counts[count] * waste
            most = least + (COPY * layer.counts["copies"] * waste if counter == "shared_loads" else 0)
            if not least * (1 - tolerance) <= counted[counter] <= most * (1 + tolerance):
                off.add(counter)
                assert counter in EXCEPTIONS.get(step.page_name, ()), (
                    layer.title,
                    counter,
                    counted[counter],
                    least,
                    most,
                )
    assert off == set(EXCEPTIONS.get(step.page_name, ())) or not layers, "exceptions that no layer needs"


@STEPS
def test_issue_slots_are_all_instructions_of_the_kernel(step: Step, card: Card) -> None:
    """Where they are counted. The hottest loop alone holds fewer: a fourth, where sizes are those of run time."""
    for layer in card.layers(step):
        if layer.counters:
            outputs = layer.names["OUTPUTS"] * layer.counters["images"]
            assert layer.counts["slots"] == normalize_count(
                "instructions", layer.counters["counts"]["instructions"], outputs
            )
            assert layer.issue_slot_source == "executed"
    for layer, counted in _counted(card, step):
        if layer.per_product is None:
            continue
        waste = layer.counts["waste"] if step.row.name != "image-loop" else 1
        foretold = layer.per_product * layer.counts["products"] * waste
        assert counted["instructions"] >= 0.9 * foretold, layer.title
        if "conv1" not in layer.title and step.page_name not in RUN_TIME_SIZES and step.row.instructions == "fma":
            assert counted["instructions"] <= (2 if step.row.name == "image-loop" else 1.6) * foretold, layer.title


@STEPS
def test_bytes_through_device_memory_are_those_foretold(step: Step, card: Card) -> None:
    """Fewer, where the L2 cache still holds what was written: counters are of few images."""
    again = set()
    for layer, counted in _counted(card, step):
        share = (counted["dram_read"] + counted["dram_written"]) / layer.counts["memory_bytes"]
        assert share > 0.4, layer.title
        if share >= 1.25:
            again.add(layer.name)
    assert again == ({"conv2"} if step.page_name in READ_AGAIN else set())


@STEPS
def test_lessons_name_the_parts_that_are_longest_or_busy(step: Step, card: Card) -> None:
    """As what bounds a step: each part that is bold in its table, or busy by the counters; no other."""
    longest = {layer.prediction.busiest_part for layer in card.layers(step)}
    busy = {
        part for _, counted in _counted(card, step) for unit, part in PART_OF.items() if counted[unit] >= BUSY
    }  # the last layer keeps nothing busy
    assert longest | busy == set(step.lesson.bounded_by)


@STEPS
def test_every_count_that_a_counter_shows_is_beside_it_and_far_ones_have_a_reason(
    step: Step, card: Card, site: Path
) -> None:
    page = (site / f"{step.page_name}.html").read_text(encoding="utf-8")
    needed = set()
    for layer in card.layers(step):
        for one in counter_differences(layer):
            assert "<caption>For an output: the count above" in page
            assert f">{format_exact(one.expected)} | {format_exact(one.counted)}<" in page, (layer.title, one)
            assert one.is_large == (max(one.expected, one.counted) > FACTOR * min(one.expected, one.counted))
            if one.is_large:
                needed.add(one.counter)
                why = difference_reason(step, layer, one)
                assert why is not None, (layer.title, one)
                assert lesson_to_html(why, layer) in page
    names = tuple(f"{layer.network} {layer.name}" for layer in card.layers(step))
    for reasons in large_difference_reasons(step, card.layers(step)).values():
        assert {one.startswith(names) for one in reasons} == {len(reasons) > 1}, "one reason is all layers'"
    assert {*step.lesson.differs} <= needed, "reasons that no layer needs"
    assert bool(needed) == ('<ul class="note">' in page)


def test_without_counters_a_page_says_that_the_hottest_loop_alone_is_counted(card: Card) -> None:
    step = BY_NAME["conv-shared-tile"]
    text = Pages(replace(card, counters={}), "test").step_page(step).html
    assert "hottest loop × waste: instructions elsewhere are not counted" in text
    assert "counted by the hardware: all instructions" not in text


def test_a_card_of_the_same_name_lends_its_instructions_if_the_parameters_are_alike(card: Card) -> None:
    step = BY_NAME["conv-shared-tile"]
    bench = card.benches["lenet5"]
    own = Card({"lenet5": bench}, card.kernels, alike=card)
    assert [layer.issue_slot_source for layer in own.layers(step)] == ["executed"] * 2
    assert not any(layer.counters for layer in own.layers(step))
    rows = [{**row, "settings": {"TILE": 16}} for table in bench["tables"] for row in table["rows"]]
    tuned = {**bench, "tables": [{**table, "rows": rows} for table in bench["tables"]]}
    assert [layer.issue_slot_source for layer in replace(own, benches={"lenet5": tuned}).layers(step)] == ["loop"] * 2


@STEPS
def test_counters_change_as_lessons_say(step: Step, card: Card) -> None:
    since = step.since
    before = {layer.title: counted for layer, counted in _counted(card, since)} if since else {}
    for layer, counted in _counted(card, step):
        told = ON_FIRST if layer.name == "conv1" else CHANGES
        for counter, (least, most) in told.get(step.page_name, {}).items():
            change = counted[counter] / before[layer.title][counter]
            assert least * 0.99 <= change <= most * 1.01, (layer.title, counter, change)


@pytest.mark.parametrize("slug", sorted(FASTER | SLOWER))
def test_steps_gain_and_lose_where_lessons_say(slug: str, card: Card) -> None:
    step = BY_NAME[slug]
    assert step.since
    found: dict[str, float] = {}
    for one in (card, stored_card("k7")):
        before = {layer.title: layer.ms for layer in one.layers(step.since)}
        for layer in one.layers(step):
            earlier = before[layer.title]
            if layer.ms is not None and earlier is not None:
                found[layer.title] = layer.ms / earlier
    assert all(found[title] < 1 for title in FASTER.get(slug, ())), found
    assert all(found[title] > 1 for title in SLOWER.get(slug, ())), found


def test_the_last_layer_waits_longer_with_wide_loads(card: Card) -> None:
    """As the lesson says of lenet5's, which the counts above leave out."""
    step = BY_NAME["gemm-wide-loads"]
    assert step.since
    issue = [
        layer.counters["counts"]["issue"]
        for one in (step.since, step)
        for layer in card.layers(one)
        if layer.title == "lenet5 fc2"
    ]
    assert issue[1] < 0.7 * issue[0]
