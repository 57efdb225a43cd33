"""Hold the counts that lessons give by formula against the hardware counters that are stored for the same layers."""

from collections.abc import Iterator

import pytest

from app.bench.profile.step_counters import per_output
from app.lessons.card import Card, Layer
from app.lessons.steps import Step, steps

# Counter → the count that foretells it, and how far it may lie from it.
FORETOLD = {
    "multiply_adds": ("products", 0.3),  # counted without idle lanes, formulas with them
    "global_loads": ("global_loads", 0.15),
    "shared_loads": ("shared_loads", 0.1),
    "shared_cycles": ("shared_cycles", 0.15),
}
COPY = 3  # loads from shared memory as which the counter takes one cp.async; it is none of global memory
# What a counter does not show, or shows otherwise, and why. An exception that no layer needs is an error.
EXCEPTIONS = {
    # Warps without a pixel leave at once; the waste is that of the blocks that they belong to.
    "conv-image-loop": ["multiply_adds", "global_loads"],
    "conv-half2": ["multiply_adds"],  # two halves a multiply-add, another instruction
    # mma is no multiply-add of a thread, either. Padded terms of the sum multiply, but load nothing from global memory;
    # with pairs of channels, or one channel, the words of a load lie in other banks than the formula takes.
    "conv-tensor-core": ["multiply_adds", "global_loads", "shared_loads", "shared_cycles"],
    "gemm-tensor-core": ["multiply_adds"],
    # wgmma reads shared memory by descriptors, and copies bring most of it.
    "gemm-warpgroup": ["multiply_adds", "global_loads", "shared_loads"],
    # After short sums the exchange of sums costs twice the cycles of its formula; long sums hide that.
    "conv-toom-cook": ["shared_loads", "shared_cycles"],
}
# The hottest loop is not the whole kernel: where sums are short, and where sizes that are known at run time make the
# compiler add loops for remainders, several times as many instructions run.
RUN_TIME_SIZES = {"conv-direct", "conv-shared-tile", "conv-constant", "conv-shared-constant"}
# A block for each map, or for a few: the input passes from device memory again where the L2 cache does not hold it.
READ_AGAIN = {"half2", "direct", "constant", "shared-tile", "shared-constant", "specialised", "unrolled"}
STEPS = pytest.mark.parametrize("step", steps(), ids=lambda step: step.slug)


def _counted(card: Card, step: Step) -> Iterator[tuple[Layer, dict[str, float]]]:
    """Return the layers with counters, per output. The last layer is left out: ten outputs fill no tile."""
    for layer in card.layers(step):
        if layer.counters and layer.name != "fc2":
            outputs = layer.names["OUTPUTS"] * layer.counters["images"]
            counts = layer.counters["counts"]
            yield layer, {name: per_output(name, value, outputs) for name, value in counts.items()}


@STEPS
def test_counts_are_those_of_the_hardware(step: Step, card: Card) -> None:
    """Per output, with the work that is wasted."""
    layers = [*_counted(card, step)]
    assert layers or step.row.needs_cublas, "profile --every-step counts every kernel of ours"
    off = set()
    for layer, counted in layers:
        waste = layer.counts["waste"]
        for counter, (count, tolerance) in FORETOLD.items():
            least = layer.counts[count] * waste
            most = least + (COPY * layer.counts["copies"] * waste if counter == "shared_loads" else 0)
            if not least * (1 - tolerance) <= counted[counter] <= most * (1 + tolerance):
                off.add(counter)
                assert counter in EXCEPTIONS.get(step.slug, ()), (layer.title, counter, counted[counter], least, most)
    assert off == set(EXCEPTIONS.get(step.slug, ())), "exceptions that no layer needs"


@STEPS
def test_instructions_are_no_fewer_than_foretold(step: Step, card: Card) -> None:
    for layer, counted in _counted(card, step):
        foretold = layer.counts["slots"] * (layer.counts["waste"] if step.row.name != "image-loop" else 1)
        assert counted["instructions"] >= 0.9 * foretold, layer.title
        if "conv1" not in layer.title and step.slug not in RUN_TIME_SIZES and step.row.instructions == "fma":
            assert counted["instructions"] <= (2 if step.row.name == "image-loop" else 1.6) * foretold, layer.title


@STEPS
def test_bytes_through_device_memory_are_those_foretold(step: Step, card: Card) -> None:
    """Fewer, where the L2 cache still holds what was written: counters are of few images."""
    for layer, counted in _counted(card, step):
        share = (counted["dram_read"] + counted["dram_written"]) / layer.counts["memory_bytes"]
        assert 0.4 < share, layer.title
        assert share < 1.25 or (step.row.name in READ_AGAIN and layer.name == "conv2"), layer.title
