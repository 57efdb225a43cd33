"""Decode the time stamps that lenet5's convolution kernels for Hopper write at the end of each warpgroup's phases.

Pure functions convert the words that stamps.cuh writes to device memory into a part of the profile document.
"""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np

from app.base.frozen import Frozen

# In the order of stamps.cuh. stage: wait for images and write windows; pool: ReLU, pooling and storing for conv2; load:
# request the next images; store: ReLU, pooling and storing of features.
PHASES = ("stage", "conv1", "pool", "load", "conv2", "store")
HEAD = 5  # words before a warpgroup's stamps
POINTS = 100  # intervals of the curves of images over time


class Warpgroup(Frozen):
    """The time stamps of one warpgroup. clocks: start, then end of each phase, in cycles. phases: indices in PHASES."""

    block: int
    number: int
    started_ns: int
    ended_ns: int
    ended_clock: int
    clocks: np.ndarray
    phases: np.ndarray


class Shares(Frozen):
    """How a launch distributes images: in each round, a warpgroup takes up to ``each``. warpgroups: per block."""

    images: int
    each: int
    blocks: int
    warpgroups: int

    @classmethod
    def from_launch_sizes(cls, images: int, most: int, multiprocessors: int, warpgroups: int) -> "Shares":
        """Return how a launch of one block per multiprocessor distributes images. most: per warpgroup and round."""
        blocks = min(images, multiprocessors)
        return cls(images, min(most, -(-images // (blocks * warpgroups))), blocks, warpgroups)

    @property
    def round_count(self) -> int:
        """Return the number of rounds until all images are taken; the first warpgroup takes part in each."""
        return -(-self.images // (self.each * self.blocks * self.warpgroups))

    @property
    def max_stamp_count(self) -> int:
        """Return the most stamps that a warpgroup writes: in each round, four for each image taken, and four more."""
        return self.round_count * (4 * self.each + 4)

    def image_count(self, block: int, number: int, round_index: int) -> int:
        """Return how many images warpgroup ``number`` of a block takes in round ``round_index``."""
        first = (block + number * self.blocks + round_index * self.blocks * self.warpgroups) * self.each
        return max(min(self.each, self.images - first), 0)


def decode_time_stamps(words: np.ndarray, shares: Shares) -> list[Warpgroup]:
    """Return the warpgroups that ran. words: what they wrote, (blocks x warpgroups, HEAD + stamps) uint64."""
    found = []
    for index, row in enumerate(words[: shares.blocks * shares.warpgroups]):
        count = int(row[0])
        stamped = row[HEAD : HEAD + count]
        if count:
            clocks = np.concatenate([row[2:3], stamped >> np.uint64(3)]).astype(np.int64)
            phases = (stamped & np.uint64(7)).astype(int)
            place = divmod(index, shares.warpgroups)
            found.append(Warpgroup(*place, int(row[1]), int(row[3]), int(row[4]), clocks, phases))
    return found


def clock_megahertz(groups: Sequence[Warpgroup]) -> float:
    """Return the multiprocessors' clock rate in MHz: cycles ÷ time between the start and the end of warpgroups."""
    spans = ((group.ended_clock - int(group.clocks[0]), group.ended_ns - group.started_ns) for group in groups)
    return median(clocks / nanoseconds * 1e3 for clocks, nanoseconds in spans if nanoseconds > 0)


def warpgroup_timeline(words: np.ndarray, shares: Shares) -> dict[str, Any]:
    """Return the phases of the warpgroups on one multiprocessor, and the progress of all images over time.

    The multiprocessor is the one with the median time. Times are microseconds since the start of the first warpgroup.
    """
    groups = decode_time_stamps(words, shares)
    mhz, begun = clock_megahertz(groups), min(group.started_ns for group in groups)
    blocks: dict[int, list[Warpgroup]] = {}
    for group in groups:
        blocks.setdefault(group.block, []).append(group)
    ends: list[tuple[float, int]] = []
    times: dict[tuple[int, int], np.ndarray] = {}
    for block, members in blocks.items():
        first = members[0]  # a multiprocessor has one clock
        for group in members:
            times[block, group.number] = (first.started_ns - begun) / 1e3 + (group.clocks - first.clocks[0]) / mhz
        ends.append((max(times[block, group.number][-1] for group in members), block))
    # The first start by the clocks: the start in ns is too coarse to tell which warpgroup was first.
    zero = min(at[0] for at in times.values())
    times = {place: at - zero for place, at in times.items()}
    shown = sorted(ends)[len(ends) // 2][1]
    return {
        "mhz": mhz,
        "multiprocessor": shown,
        "warpgroups": [_phase_spans(group, times[shown, group.number]) for group in blocks[shown]],
        "images": _image_progress(groups, times, shares),
    }


def _phase_spans(group: Warpgroup, at: np.ndarray) -> list[list[Any]]:
    starts, stops = np.round(at[:-1], 3).tolist(), np.round(at[1:], 3).tolist()
    return [
        [PHASES[phase], start, stop] for phase, start, stop in zip(group.phases.tolist(), starts, stops, strict=True)
    ]


def _image_progress(
    groups: Iterable[Warpgroup], times: dict[tuple[int, int], np.ndarray], shares: Shares
) -> dict[str, Any]:
    """Return how many images were requested, staged and computed at each of POINTS + 1 times. times: stamps in µs."""
    events: dict[str, list[tuple[float, int]]] = {"requested": [], "staged": [], "computed": []}
    for group in groups:
        at = times[group.block, group.number]
        round_index = 0
        events["requested"].append((at[0], shares.image_count(group.block, group.number, 0)))
        for phase, stop in zip(group.phases.tolist(), at[1:].tolist(), strict=True):
            taken = shares.image_count(group.block, group.number, round_index)
            match PHASES[phase]:
                case "stage":
                    events["staged"].append((stop, taken))
                case "load":
                    events["requested"].append((stop, shares.image_count(group.block, group.number, round_index + 1)))
                case "store":
                    events["computed"].append((stop, taken))
                    round_index += 1
    end = max(stop for stop, _ in events["computed"])
    sampled = np.linspace(0, end, POINTS + 1)
    curves = {name: np.array(sorted(found)) for name, found in events.items()}
    counts = {
        name: np.concatenate([[0], np.cumsum(found[:, 1])])[np.searchsorted(found[:, 0], sampled, side="right")]
        for name, found in curves.items()
    }
    return {"us": np.round(sampled, 3).tolist(), **{name: count.astype(int).tolist() for name, count in counts.items()}}
