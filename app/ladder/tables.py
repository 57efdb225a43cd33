"""Build a step's tables as data for its page's template; explain hardware counters that differ from the formulas."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from app.base.frozen import Frozen
from app.lab.document import Row
from app.lab.profile.counters import COUNTERS, normalize_count
from app.ladder.card import EXAMPLE, Layer
from app.ladder.counting import COUNTS, PARTS
from app.ladder.formulas import format_count
from app.ladder.lessons import Step
from app.terminal.text import format_factor, format_ms

FACTOR = 1.25  # a count and its counter that differ by a larger factor need a reason
# Hardware counter → the count that it is compared with, per output; dram adds bytes read and written.
COUNTED = {
    "multiply_adds": "products",
    "global_loads": "global_loads",
    "shared_loads": "shared_loads",
    "shared_cycles": "shared_cycles",
    "dram": "memory_bytes",
}
WORDS = {name: COUNTERS[name].words for name in COUNTED if name in COUNTERS} | {"dram": "bytes through device memory"}
# Counter → operations that threads without outputs skip. A warp still loads if one of its threads has an output.
IDLE_SKIPS = {"multiply_adds": "products", "global_loads": "loads"}
COPY = 3  # the most loads from shared memory that the compiler adds before a cp.async
AGAIN = (
    "Blocks of different maps read the same images, and where the images in flight outgrow the L2 cache, they come "
    "from device memory again."
)
BY_LAUNCH = (
    "A layer of several slices of the filters reads its images once more for each, with the caches emptied before."
)


class CounterDifference(Frozen):
    """The two values of a counter, per output: expected by the lesson's formula, and counted by the hardware."""

    counter: str
    expected: float
    counted: float

    @property
    def is_large(self) -> bool:
        """Return whether formula and hardware differ by more than ``FACTOR``."""
        least, most = sorted((self.expected, self.counted))
        return most > FACTOR * least


def counter_differences(layer: Layer) -> Iterator[CounterDifference]:
    """Yield the expected and the counted value of each hardware counter of ``COUNTED`` on a layer.

    A layer without counters yields nothing, and a counter whose two values are 0 is omitted.
    """
    if not layer.counters:
        return
    outputs = layer.names["OUTPUTS"] * layer.counters["images"]
    counts = {name: normalize_count(name, value, outputs) for name, value in layer.counters["counts"].items() if value}
    counts["dram"] = counts.get("dram_read", 0) + counts.get("dram_written", 0)
    for counter, count in COUNTED.items():
        waste = 1 if counter == "dram" else layer.counts["waste"]
        told, counted = layer.counts[count] * waste, counts.get(counter, 0)
        if told or counted:
            yield CounterDifference(counter, told, counted)


def difference_reason(step: Step, layer: Layer, found: CounterDifference) -> str | None:
    """Return why the counter differs so much from the formula: a sentence of the lesson or a general one, or None."""
    if found.counter in step.lesson.differs:
        return step.lesson.differs[found.counter]
    fewer = found.counted < found.expected
    if found.counter == "multiply_adds" and step.row.instructions != "fma":
        return (
            f"The counter knows a thread's fp32 multiply-adds alone; this step multiplies by {step.row.instructions}."
        )
    copied = found.expected + COPY * layer.counts["copies"] * layer.counts["waste"]
    needed = found.expected / layer.counts["waste"]
    if found.counter in IDLE_SKIPS and fewer and found.counted * FACTOR >= needed:
        who = "Threads" if found.counted <= 1.01 * needed else "Some of the threads"
        return f"{who} without outputs skip their {IDLE_SKIPS[found.counter]}; the count takes all for wasted work."
    if found.counter == "shared_loads" and found.counted <= FACTOR * copied:
        alone = "" if found.counted <= 1.02 * copied else " That explains a part alone."
        return f"The compiler puts up to {COPY} loads before a copy (`LDS RZ, [RZ]`), whose values nobody uses.{alone}"
    if found.counter == "dram" and not fewer and step.lesson.drawing["kind"] in ("window", "tile"):
        return BY_LAUNCH if layer.counters and layer.counters["launches"] > 1 else AGAIN
    if found.counter == "dram" and fewer:
        return "Of so few images the L2 cache still holds part of what the kernel wrote when it ends."
    return None


def large_difference_reasons(step: Step, layers: Sequence[Layer]) -> dict[str, list[str]]:
    """Return counter → sentences on why it is far from the formula; if there are several, each names its layers."""
    found: dict[str, dict[str, list[str]]] = {}
    for layer in layers:
        for one in counter_differences(layer):
            if one.is_large:
                why = difference_reason(step, layer, one) or "Why is not known."
                found.setdefault(one.counter, {}).setdefault(why, []).append(f"{layer.network} {layer.name}")
    return {
        counter: [why if len(whys) == 1 else f"{', '.join(names)}: {why}" for why, names in whys.items()]
        for counter, whys in found.items()
    }


DASH = "–"
# Source of the number of issue slots → its description on a page.
SLOTS = {
    "executed": "counted by the hardware: all instructions of the step's kernels",
    "loop": f"products × those for each in {EXAMPLE}'s hottest loop × waste: instructions elsewhere are not counted",
}
MACHINE = (
    "What the compiler made of it; this needs no card. The hottest loop is the one with the most multiplications; "
    "where all loops are unrolled, none is left"
)
# Row title → text from a kernel's resources; below, row title → key of its hottest loop.
RESOURCES: Mapping[str, Callable[[Row], str]] = {
    "function": lambda found: str(found["entry"]),
    "registers of a thread": lambda found: f"{found['registers']:,}",
    "bytes of shared memory of a block": lambda found: f"{found['static_shared'] + found['dynamic_shared']:,}",
    "blocks on a multiprocessor": lambda found: f"{found['blocks']:,}",
    "threads that fit, of the most (occupancy)": lambda found: f"{found['occupancy']:.0%}",
}
LOOPS = {
    "hottest loop: instructions": "instructions",
    "… that multiply": "multiply",
    "… that load from global memory": "global_load",
    "… from shared memory": "shared_load",
    "… from constant memory (taps, or the kernel's arguments)": "constant_load",
}


def ms_text(layer: Layer) -> str:
    """Return a layer's measured time as text; a dash if it was not measured."""
    return format_ms(layer.ms) or DASH


def counts_per_output_table(step: Step, layers: Sequence[Layer]) -> Any:
    """Return a table of a step's counts per output on each layer."""
    rows = []
    for name, (words, default) in COUNTS.items():
        if not any(layer.counts[name] for layer in layers):
            continue
        note = step.lesson.counts.get(name, default)
        if name == "slots":
            note = "; ".join(dict.fromkeys(SLOTS.get(layer.issue_slot_source, note) for layer in layers))
        rows.append(_row_data(words, [format_count(layer.counts[name]) for layer in layers], note))
    helpers = {name: formula for name, formula in step.lesson.counts.items() if name not in COUNTS}
    where = "".join(f"; {name} = {formula}" for name, formula in helpers.items())
    caption = f"What a thread does for one output, by the row's parameters and the layer's shape{where}"
    return _table_data(caption, "count", layers, rows, "formula")


def times_table(layers: Sequence[Layer], since: Step | None, earlier: Mapping[str, Layer]) -> Any:
    """Return a table of the predicted time for which each part of the card is busy, and of the measured time.

    earlier: title → layer of ``since``, the step on which this one builds.
    """
    rows = [
        _row_data(
            words[:1].upper() + words[1:],
            [format_ms(layer.prediction.parts[part]) or "0" for layer in layers],
            bound=[layer.prediction.busiest_part == part for layer in layers],
        )
        for part, words in PARTS.items()
        if any(layer.prediction.parts[part] for layer in layers)
    ]
    rows.append(_row_data("Predicted: no less than", [format_ms(layer.prediction.ms) for layer in layers], strong=True))
    rows.append(_row_data("Measured", [ms_text(layer) for layer in layers], strong=True))
    olds = [earlier.get(layer.title) for layer in layers]
    if since and any(old and old.ms for old in olds):
        rows.append(_row_data(f"Step {since.title}, measured", [ms_text(old) if old else DASH for old in olds]))
    ratios = [format_factor(layer.ms / layer.prediction.ms) if layer.ms else DASH for layer in layers]
    rows.append(_row_data("Measured ÷ predicted", ratios))
    images = layers[0].names["BATCH"]
    return _table_data(
        f"Milliseconds for {images:,} images; the longest part is bold", "part of the card", layers, rows
    )


def counters_table(step: Step, layers: Sequence[Layer], earlier: Mapping[str, Layer]) -> Any:
    """Return a table of hardware counters; None if no layer has any.

    earlier: title → layer of the step on which this one builds; its counters come first.
    """
    counted = [layer for layer in layers if layer.counters]
    if not counted:
        return None
    rows = []
    for name in step.lesson.proven_by:
        cells = []
        for layer in counted:
            old = earlier.get(layer.title)
            before = f"{_counter_text(old, name)} → " if old and old.counters else ""
            cells.append(before + _counter_text(layer, name))
        unit = "%" if COUNTERS[name].unit == "%" else "per output"
        rows.append(_row_data(f"{COUNTERS[name].words}, {unit}", cells))
    images = counted[0].counters["images"]
    caption = f"Hardware counters (Nsight Compute), {images:,} images, each kernel alone on the card, launches added up"
    if step.since and any(old.counters for old in earlier.values()):
        caption += f"; before the arrow, step {step.since.title}"
    return _table_data(caption, "counter", counted, rows)


def _counter_text(layer: Layer, name: str) -> str:
    value = layer.counters["counts"].get(name)
    outputs = layer.names["OUTPUTS"] * layer.counters["images"]
    return DASH if value is None else format_count(normalize_count(name, value, outputs))


def formula_and_hardware_table(layers: Sequence[Layer]) -> Any:
    """Return a table of counts by formulas, with wasted work, and by hardware; None if the hardware counted nothing."""
    found = [(layer, {one.counter: one for one in counter_differences(layer)}) for layer in layers if layer.counters]
    if not found:
        return None
    rows = []
    for counter, words in WORDS.items():
        cells = [one.get(counter) for _, one in found]
        if any(cells):
            shown = [f"{format_count(one.expected)} | {format_count(one.counted)}" if one else DASH for one in cells]
            rows.append(_row_data(words, shown, bound=[bool(cell and cell.is_large) for cell in cells]))
    caption = (
        "For an output: the count above, with the work that is wasted | the hardware counter; "
        f"bold where they differ by more than the factor {FACTOR}"
    )
    return _table_data(caption, "count | counter", [layer for layer, _ in found], rows)


def busy_shares_table(layers: Sequence[Layer]) -> Any:
    """Return a table of each part's predicted busy time ÷ the layer's measured time; None if none was measured."""
    timed = [layer for layer in layers if layer.ms]
    if not timed:
        return None
    rows = [
        _row_data(
            words[:1].upper() + words[1:], [f"{layer.prediction.parts[part] / (layer.ms or 1):.0%}" for layer in timed]
        )
        for part, words in PARTS.items()
        if part != "latency" and any(layer.prediction.parts[part] for layer in timed)
    ]
    caption = "In place of counters: the share of the measured time that each part is busy, by the counts"
    return _table_data(caption, "part of the card", timed, rows)


def compiled_kernel_table(layers: Sequence[Layer]) -> Any:
    """Return a table of the compiled kernel: registers, shared memory, occupancy, hottest loop; None if unknown."""
    found = {layer.example: layer for layer in reversed(layers) if layer.resources}  # of the first network
    known = [found[name] for name in sorted(found)]
    if not known:
        return None
    rows = [_row_data(words, [said(layer.resources) for layer in known]) for words, said in RESOURCES.items()]
    loops = [layer.loop for layer in known]
    for words, name in LOOPS.items() if any(loops) else ():
        rows.append(_row_data(words, [str(loop[name]) if loop else "no loop left" for loop in loops]))
    ran = [", ".join(f"{name} = {value}" for name, value in layer.tuned.items()) for layer in known]
    told = [f"{layer.title} with {one}" for layer, one in zip(known, ran, strict=True) if one]
    caption = f"{MACHINE}. Compiled with the row's own parameters; measured, {', '.join(told)}" if told else MACHINE
    return _table_data(caption, "machine code", known, rows, heads=[f"{EXAMPLE} {layer.example}" for layer in known])


def _row_data(name: str, cells: Sequence[str], note: str = "", strong: bool = False, bound: Sequence[bool] = ()) -> Any:
    marks = bound or [False] * len(cells)
    shown = [{"text": cell, "bound": mark} for cell, mark in zip(cells, marks, strict=True)]
    return {"name": name, "note": note, "cells": shown, "strong": strong}


def _table_data(
    caption: str, first: str, layers: Sequence[Layer], rows: Sequence[Any], notes: str = "", heads: Sequence[str] = ()
) -> Any:
    heads = heads or [layer.title for layer in layers]
    return {"caption": caption, "first": first, "notes": notes, "heads": heads, "rows": rows}
