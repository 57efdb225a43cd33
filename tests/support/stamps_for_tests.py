"""Words as lenet5's convolutions for Hopper leave them with stamps, made up: every phase has its length in clocks."""

from typing import Any

import numpy as np

from app.lab.profile.stamps import HEAD, PHASES, Shares, warpgroup_timeline

CLOCKS = {"stage": 400, "conv1": 900, "pool": 700, "load": 40, "conv2": 5200, "store": 800}
MHZ = 2000
SHARES = Shares.from_launch_sizes(1000, 2, 16, 4)


def words(shares: Shares = SHARES) -> np.ndarray:
    """The words of every warpgroup; each block starts 100 ns after the one before, with a clock of its own."""
    found = np.zeros((shares.blocks * shares.warpgroups, HEAD + shares.max_stamp_count), np.uint64)
    for index, row in enumerate(found):
        block, number = divmod(index, shares.warpgroups)
        begin = clock = 10_000 + 1_000_000 * block + 300 * number
        stamps = []
        for turn in range(shares.round_count):
            taken = shares.image_count(block, number, turn)
            if not taken:
                break
            for phase in ("stage", *("conv1", "pool") * (2 * taken), "load", "conv2", "store"):
                clock += CLOCKS[phase]
                stamps.append(clock * 8 + PHASES.index(phase))
        nanoseconds = [
            5_000_000 + 100 * block + (at - 10_000 - 1_000_000 * block) * 1000 // MHZ for at in (begin, clock)
        ]
        row[: HEAD + len(stamps)] = [len(stamps), nanoseconds[0], begin, nanoseconds[1], clock, *stamps]
    return found


def document() -> dict[str, Any]:
    """The ``warpgroup_timeline`` of a profile document, from made-up words."""
    return {
        "kernel": "wgmma",
        "layers": "conv1+relu1+pool1+conv2+relu2+pool2",
        "images_are": "read by the first kernel",
        "end_to_end_ms": {"plain": 0.045, "stamped": 0.047},
        "on_card_ms": 0.03,
        "raw_copy_ms": 0.02,
        **warpgroup_timeline(words(), SHARES),
    }
