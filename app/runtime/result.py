"""What a measured run returns, whichever device it ran on; the report is made from this alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.runtime import statistics
from app.runtime.overlap import Usage


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one thing: ms each."""

    samples: tuple[float, ...]

    def percentile(self, q: int) -> float | None:
        """The q-th percentile by nearest rank, 1..99; None if there are too few samples for it."""
        return statistics.percentile(self.samples, q)

    @property
    def median(self) -> float:
        """The 50th percentile."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float | None:
        """The 90th percentile minus the 10th; None if there are too few samples for them."""
        low, high = self.percentile(10), self.percentile(90)
        return None if low is None or high is None else high - low

    @property
    def row(self) -> dict[str, Any]:
        """The fields of a JSON row: ``ms``, the median; ``spread_ms``; ``runs``."""
        return {"ms": self.median, "spread_ms": self.spread, "runs": len(self.samples)}


@dataclass(frozen=True)
class LayerTime:
    """One launch, or on the CPU one layer, over ``images`` images; flops and bytes are for all of them."""

    name: str
    kernel: str
    images: int
    timing: Timing
    flops: int
    nbytes: int


@dataclass(frozen=True)
class Cycle:
    """A batch streamed in several passes over the data: totals, and passes whose labels were not the first's."""

    correct: int | None
    total: int
    unsteady: int


@dataclass(frozen=True)
class Compared:
    """The same batch in the precision that ``--compare`` names: times end to end, and labels (N,) uint8.

    precision: as it was asked for. arithmetic: the coarsest type that was multiplied in.
    """

    precision: str
    arithmetic: str
    end_to_end: Timing
    labels: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """Labels and measurements. labels: (N,) uint8 of the (first) pass, as the timed runs wrote them.

    on_card: the whole pass on images already on the card, over ``on_card_images``; None on the CPU.
    usage: overlap and limit from a traced run; None on the CPU. arithmetic: the coarsest type that was multiplied in.
    device_bytes: the pipeline's buffers and weights; peak_device_bytes: with those of the measurements on the card.
    raw_copy: the same images to the card in one piece, and nothing else. compared: None without ``--compare``.
    """

    device: dict[str, Any]
    settings: dict[str, Any]
    labels: np.ndarray
    cycle: Cycle | None
    end_to_end: Timing
    layers: tuple[LayerTime, ...]
    op_times: tuple[LayerTime, ...]
    on_card: Timing | None
    on_card_images: int
    usage: Usage | None
    limit: str
    device_bytes: int
    peak_device_bytes: int
    notes: tuple[str, ...]
    arithmetic: str = "float32"
    raw_copy: Timing | None = None
    compared: Compared | None = None
