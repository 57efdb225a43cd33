"""Read the stamps that lenet5's convolutions for Hopper leave (include/stamps.cuh): what each warpgroup did when.

Pure functions: the words that were in the card's memory in, a part of the profile document out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

# In the order of stamps.cuh. stage: wait for images and write windows; pool: ReLU, pooling and storing for conv2; load:
# request the next images; store: ReLU, pooling and storing of features.
PHASES = ("stage", "conv1", "pool", "load", "conv2", "store")
HEAD = 5  # words before the stamps of a warpgroup
POINTS = 100  # of the bus's curves


@dataclass(frozen=True)
class Warpgroup:
    """One warpgroup's run. clocks: its start, then the end of each phase; phases: their indices."""

    block: int
    number: int
    started_ns: int
    ended_ns: int
    ended_clock: int
    clocks: np.ndarray
    phases: np.ndarray


@dataclass(frozen=True)
class Shares:
    """How a launch deals images out: ``each`` images a time to every warpgroup of ``blocks`` blocks, in turns."""

    images: int
    each: int
    blocks: int
    warpgroups: int

    @classmethod
    def of(cls, images: int, most: int, multiprocessors: int, warpgroups: int) -> "Shares":
        """Return the shares of a launch whose warpgroups take at most ``most`` images at a time."""
        blocks = min(images, multiprocessors)
        return cls(images, min(most, -(-images // (blocks * warpgroups))), blocks, warpgroups)

    @property
    def rounds(self) -> int:
        """Times that the first warpgroup takes images."""
        return -(-self.images // (self.each * self.blocks * self.warpgroups))

    @property
    def stamps(self) -> int:
        """Stamps that a warpgroup leaves, at most: two for each of two passes an image, and four beside."""
        return self.rounds * (4 * self.each + 4)

    def taken(self, block: int, number: int, turn: int) -> int:
        """Return how many images that warpgroup has in its round ``turn``."""
        first = (block + number * self.blocks + turn * self.blocks * self.warpgroups) * self.each
        return max(min(self.each, self.images - first), 0)


def decode(words: np.ndarray, shares: Shares) -> list[Warpgroup]:
    """Return the warpgroups that ran, from the words (blocks x warpgroups, HEAD + stamps) uint64."""
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


def megahertz(groups: Sequence[Warpgroup]) -> float:
    """Return the clock of the multiprocessors, from the two clocks at the warpgroups' start and end."""
    spans = ((group.ended_clock - int(group.clocks[0]), group.ended_ns - group.started_ns) for group in groups)
    return median(clocks / nanoseconds * 1e3 for clocks, nanoseconds in spans if nanoseconds > 0)


def timeline(words: np.ndarray, shares: Shares) -> dict[str, Any]:
    """Return the part of the document that the stamps tell: one multiprocessor's warpgroups, and images over time.

    The multiprocessor is the one with the median time. Times are microseconds since the first warpgroup's start.
    """
    groups = decode(words, shares)
    mhz, begun = megahertz(groups), min(group.started_ns for group in groups)
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
    zero = min(at[0] for at in times.values())  # nanoseconds are coarse: by the clocks another may have started first
    times = {place: at - zero for place, at in times.items()}
    shown = sorted(ends)[len(ends) // 2][1]
    return {
        "mhz": mhz,
        "multiprocessor": shown,
        "warpgroups": [_spans(group, times[shown, group.number]) for group in blocks[shown]],
        "images": _images(groups, times, shares),
    }


def _spans(group: Warpgroup, at: np.ndarray) -> list[list[Any]]:
    starts, stops = np.round(at[:-1], 3).tolist(), np.round(at[1:], 3).tolist()
    return [
        [PHASES[phase], start, stop] for phase, start, stop in zip(group.phases.tolist(), starts, stops, strict=True)
    ]


def _images(groups: Iterable[Warpgroup], times: dict[tuple[int, int], np.ndarray], shares: Shares) -> dict[str, Any]:
    """Return how many images were requested, staged and computed by each of POINTS + 1 times."""
    events: dict[str, list[tuple[float, int]]] = {"requested": [], "staged": [], "computed": []}
    for group in groups:
        at = times[group.block, group.number]
        turn = 0
        events["requested"].append((at[0], shares.taken(group.block, group.number, 0)))
        for phase, stop in zip(group.phases.tolist(), at[1:].tolist(), strict=True):
            taken = shares.taken(group.block, group.number, turn)
            match PHASES[phase]:
                case "stage":
                    events["staged"].append((stop, taken))
                case "load":
                    events["requested"].append((stop, shares.taken(group.block, group.number, turn + 1)))
                case "store":
                    events["computed"].append((stop, taken))
                    turn += 1
    end = max(stop for stop, _ in events["computed"])
    sampled = np.linspace(0, end, POINTS + 1)
    curves = {name: np.array(sorted(found)) for name, found in events.items()}
    counts = {
        name: np.concatenate([[0], np.cumsum(found[:, 1])])[np.searchsorted(found[:, 0], sampled, side="right")]
        for name, found in curves.items()
    }
    return {"us": np.round(sampled, 3).tolist(), **{name: count.astype(int).tolist() for name, count in counts.items()}}
