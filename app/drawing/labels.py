"""Position the labels of points so that no label covers another label, a point, or the edge of the panel."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

from app.base.frozen import Frozen

HEIGHT = 14  # of a label, in pixels
RADIUS = 6  # around a point


class Box(Frozen):
    """A rectangle: its upper left corner and its size, in pixels."""

    x: float
    y: float
    width: float
    height: float

    def overlaps_box(self, other: "Box") -> bool:
        """Return whether the two boxes overlap."""
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )

    def contains_box(self, other: "Box") -> bool:
        """Return whether the other box lies inside this one."""
        return (
            self.x <= other.x
            and self.y <= other.y
            and other.x + other.width <= self.x + self.width
            and other.y + other.height <= self.y + self.height
        )


Point = tuple[float, float]


class NoRoomError(ValueError):
    """Raised if a panel is too small for its labels."""


def place_labels(points: Sequence[tuple[Point, float]], panel: Box, others: Sequence[Box] = ()) -> list[Box]:
    """Return, for each (point, width of its label), the nearest free box for the label.

    others: boxes that are occupied already. Raises NoRoomError if the panel has no room for a label.
    """
    taken = [*others, *(Box(x - RADIUS, y - RADIUS, 2 * RADIUS, 2 * RADIUS) for (x, y), _ in points)]
    found = []
    for (x, y), width in points:
        box = next((box for box in _candidate_boxes(x, y, width, panel) if _is_free(box, taken, panel)), None)
        if box is None:
            raise NoRoomError("the panel has no room for all labels")
        taken.append(box)
        found.append(box)
    return found


def _is_free(box: Box, taken: list[Box], panel: Box) -> bool:
    for at, other in enumerate(taken):
        if box.overlaps_box(other):
            taken.insert(0, taken.pop(at))  # to be compared first: it is often in the way of the next candidate, too
            return False
    return panel.contains_box(box)


def _candidate_boxes(x: float, y: float, width: float, panel: Box) -> Iterator[Box]:
    """Yield boxes for a label of ``width`` pixels around (x, y), the nearest first, horizontal before diagonal."""
    far = math.hypot(panel.width, panel.height)
    distance = RADIUS + 1.0
    while distance < far:
        for side, turn in product((1, -1), (0, -1, 1, -2, 2)):
            across, down = side * math.cos(math.pi / 8 * turn), math.sin(math.pi / 8 * turn)
            middle = x + distance * across + (width / 2) * across, y + distance * down
            yield Box(middle[0] - width / 2, middle[1] - HEIGHT / 2, width, HEIGHT)
        distance += 5


def spread_label_positions(at: Sequence[float], low: float, high: float) -> list[float]:
    """Return y positions of labels, near those in ``at`` (ascending), ``HEIGHT`` apart, in low..high if they fit."""
    found: list[float] = []
    for wanted in at:
        found.append(max(wanted, found[-1] + HEIGHT) if found else max(wanted, low))
    for place in reversed(range(len(found))):
        most = found[place + 1] - HEIGHT if place + 1 < len(found) else high
        found[place] = min(found[place], most)
    return found
