"""Define the labels and times that a measured run on GPU or CPU returns, from which the report is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from app.base.frozen import Frozen
from app.main_job import statistics

if TYPE_CHECKING:
    from app.records.report import Layer, Pipeline, Power

DISAGREE = 1.5  # limit of time on the card ÷ sum of its layers, which is 0.70 to 1.01 in the stored reports


class Timing(Frozen):
    """Repeated measurements of the same work, in ms."""

    samples: tuple[float, ...]

    def percentile(self, q: int) -> float | None:
        """Return the q-th percentile (1..99) by nearest rank, in ms; None if there are too few samples."""
        return statistics.percentile(self.samples, q)

    @property
    def median(self) -> float:
        """Return the 50th percentile in ms."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float | None:
        """Return the 90th percentile minus the 10th, in ms; None if there are too few samples."""
        low, high = self.percentile(10), self.percentile(90)
        return None if low is None or high is None else high - low

    @property
    def json_row(self) -> dict[str, Any]:
        """Return the fields of a JSON row: ``ms`` (the median), ``spread_ms``, ``runs`` and ``samples``."""
        samples = statistics.round_samples(self.samples)
        return {"ms": self.median, "spread_ms": self.spread, "runs": len(samples), "samples": samples}


def layer_row(name: str, kernel: str, images: int, timing: Timing, flops: int, nbytes: int) -> Layer:
    """Return the report's row of a kernel launch, or of a layer on the CPU, for ``images`` images.

    flops, nbytes: for all images together. The row's share of the layers' total time is added later.
    """
    ms = timing.median
    return {
        "name": name,
        "kernel": kernel,
        "images": images,
        "ms": ms,
        "spread_ms": timing.spread,
        "samples": statistics.round_samples(timing.samples),
        "gflop": flops / 1e9,
        "tflops": statistics.rate_or_zero(flops / 1e9, ms),
        "gbytes_per_s": statistics.rate_or_zero(nbytes / 1e6, ms),
        "share": None,
    }


class Cycle(Frozen):
    """Counts over all passes: right labels (None: unknown), images, and passes whose labels differ from the first's."""

    correct: int | None
    total: int
    unsteady: int


def repeat_images(images: np.ndarray, batch: int) -> Iterator[np.ndarray]:
    """Yield the images, (N, C, H, W), again and again, ``batch`` images in all; the last array may be shorter."""
    for start in range(0, batch, len(images)):
        yield images[: batch - start]


def compare_passes(passes: Iterable[np.ndarray], truth: np.ndarray | None, first: np.ndarray) -> Cycle:
    """Count the correct labels of all passes, and the passes whose labels differ from those of the first one.

    passes: labels (N,) of each pass. truth: correct labels (N,). first: receives the labels of the first pass.
    """
    correct = total = unsteady = 0
    for index, labels in enumerate(passes):
        if index == 0:
            first[:] = labels
        unsteady += not np.array_equal(labels, first[: len(labels)])
        if truth is not None:
            correct += int((labels == truth[: len(labels)]).sum())
        total += len(labels)
    return Cycle(None if truth is None else correct, total, unsteady)


class ComparedRun(Frozen):
    """A run of the same batch in the precision of ``--compare``: end-to-end times, and labels (N,) uint8.

    precision: as the user named it. arithmetic: the least precise type in which a layer multiplies.
    """

    precision: str
    arithmetic: str
    end_to_end: Timing
    labels: np.ndarray


class Outcome(Frozen):
    """Labels and measurements of a run. labels: (N,) uint8 of the first pass, as the timed runs wrote them.

    arithmetic: the least precise type in which a layer multiplies. op_times: rows of convolutions alone. limit: a
    sentence about what limits the run. compared, power: results of ``--compare`` and ``--power``, or None.

    Only on a GPU: on_card: time of the network on ``on_card_images`` images that lie on the card. usage: overlap and
    limit of a traced run. device_bytes: size of the run's buffers and weights. peak_device_bytes: the same with the
    buffers of the measurements on the card. raw_copy: time to copy the same images to the card in one piece.
    """

    device: dict[str, Any]
    settings: dict[str, Any]
    labels: np.ndarray
    cycle: Cycle | None
    end_to_end: Timing
    layers: tuple[Layer, ...]
    op_times: tuple[Layer, ...]
    limit: str
    notes: tuple[str, ...]
    on_card: Timing | None = None
    on_card_images: int = 0
    usage: Pipeline | None = None
    device_bytes: int = 0
    peak_device_bytes: int = 0
    arithmetic: str = "float32"
    raw_copy: Timing | None = None
    power: Power | None = None
    compared: ComparedRun | None = None


def bimodality_warnings(outcome: Outcome) -> Iterator[str]:
    """Yield a warning for each time whose samples form two groups, and one if a pass takes longer than its layers."""
    for name, samples in _named_samples(outcome):
        if (groups := statistics.split_two_modes(samples)) is not None:
            (low, few), (high, rest) = ((f"{statistics.median(group):.3f} ms", len(group)) for group in groups)
            slow = [sample > groups[0][-1] for sample in samples]
            order = ", one group after the other" if slow in (sorted(slow), sorted(slow, reverse=True)) else ""
            yield f"{name}: the runs fall into two groups, {low} ({few} runs) and {high} ({rest}){order}; measure again"
    together = sum(layer["ms"] for layer in outcome.layers)
    if outcome.on_card is not None and outcome.on_card.median > DISAGREE * together > 0:
        times = f"{outcome.on_card.median / together:.1f} × as long as its layers timed one by one"
        yield f"on the card: the pass takes {times}; the GPU may have changed its clock: measure again"


def _named_samples(outcome: Outcome) -> Iterator[tuple[str, Sequence[float]]]:
    """Yield name and samples of every time in the report that the command ``compare`` reads."""
    yield "end to end", outcome.end_to_end.samples
    if outcome.compared is not None:
        yield f"end to end in {outcome.compared.precision}", outcome.compared.end_to_end.samples
    for name, timing in (("on the card", outcome.on_card), ("raw copy", outcome.raw_copy)):
        if timing is not None:
            yield name, timing.samples
    for layer in outcome.layers:
        yield layer["name"], layer["samples"]
    for layer in () if outcome.on_card is None else outcome.op_times:  # on the CPU they equal the layers
        yield f"{layer['name']} alone", layer["samples"]
