"""Compare the counts of a step with the hardware counters of the same layer, and explain differences."""

from collections.abc import Iterator, Sequence

from app.base.frozen import Frozen
from app.lab.profile.counters import COUNTERS, normalize_count
from app.ladder.card import Layer
from app.ladder.lessons import Step

FACTOR = 1.25  # a count and its counter that differ by a larger factor need a reason
# Counter → its count per output, including wasted work; bytes pass through device memory both ways.
COUNTED = {
    "multiply_adds": "products",
    "global_loads": "global_loads",
    "shared_loads": "shared_loads",
    "shared_cycles": "shared_cycles",
    "dram": "memory_bytes",
}
WORDS = {name: COUNTERS[name].words for name in COUNTED if name in COUNTERS} | {"dram": "bytes through device memory"}
# What threads without outputs skip; a warp still loads if one of its threads has an output.
IDLE_SKIPS = {"multiply_adds": "products", "global_loads": "loads"}
COPY = 3  # the most loads from shared memory that the compiler adds before a cp.async
AGAIN = (
    "Blocks of different maps read the same images, and where the images in flight outgrow the L2 cache, they come "
    "from device memory again."
)
BY_LAUNCH = (
    "A layer of several slices of the filters reads its images once more for each, with the caches emptied before."
)


class Difference(Frozen):
    """A count per output of one layer. told: by the lesson's formula. counted: by the hardware."""

    counter: str
    told: float
    counted: float

    @property
    def is_large(self) -> bool:
        """Return whether formula and hardware differ by more than ``FACTOR``."""
        least, most = sorted((self.told, self.counted))
        return most > FACTOR * least


def counter_differences(layer: Layer) -> Iterator[Difference]:
    """Yield the step's count on the layer beside the measured one, for each hardware counter of ``COUNTED``.

    Yield nothing without measured counters, nor for a counter if both counts are 0.
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
            yield Difference(counter, told, counted)


def difference_reason(step: Step, layer: Layer, found: Difference) -> str | None:
    """Return the reason for a large difference: that of the lesson, or else a general one; None if none applies."""
    if found.counter in step.lesson.differs:
        return step.lesson.differs[found.counter]
    fewer = found.counted < found.told
    if found.counter == "multiply_adds" and step.row.instructions != "fma":
        return (
            f"The counter knows a thread's fp32 multiply-adds alone; this step multiplies by {step.row.instructions}."
        )
    copied = found.told + COPY * layer.counts["copies"] * layer.counts["waste"]
    needed = found.told / layer.counts["waste"]
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
    """Return the reasons for all large differences of a step: counter → sentences, with layers if several."""
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
