"""Notes on a run that did not keep one level: its samples fall into two groups, or its measurements disagree. Pure."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import log

from app.main_job.result import Outcome, Timing
from app.main_job.statistics import median

LEAST_SAMPLES = 20
LEAST_SHARE = 0.2  # of the samples, in either group: fewer are outliers
EXPLAINED = 0.93  # share of the logarithms' variance: a uniform distribution reaches 0.75, a normal one 0.64
LEAST_RATIO = 1.1
LEAST_GAP_MS = 0.001  # two steps of CUDA's events
DISAGREE = 1.5  # the pass on the card ÷ its layers: 0.70 to 1.01 in the stored reports


def two_levels(samples: Sequence[float]) -> tuple[list[float], list[float]] | None:
    """Return the lower and the upper samples, in order, if they fall into two groups; else None.

    samples: ms. The samples are cut where the groups explain most of the variance (Otsu's method). Of 20 samples or
    more with one peak, however skewed, at most 0.3 % of all lists are found to fall into groups, also if each sample
    depends on the one before.
    """
    count = len(samples)
    if count < LEAST_SAMPLES or min(samples) <= 0:
        return None
    ordered = sorted(samples)
    logs = [log(sample) for sample in ordered]
    mean = sum(logs) / count
    least = int(LEAST_SHARE * count)
    sums = [*accumulate(value - mean for value in logs)]
    between, at = max((sums[at - 1] ** 2 * count / (at * (count - at)), at) for at in range(least, count - least + 1))
    if between <= EXPLAINED * sum((value - mean) ** 2 for value in logs):
        return None
    lower, upper = ordered[:at], ordered[at:]
    low, high = median(lower), median(upper)
    return (lower, upper) if high >= LEAST_RATIO * low and high - low > LEAST_GAP_MS else None


def level_notes(outcome: Outcome) -> Iterator[str]:
    """Yield a sentence for each time whose runs fall into two groups, and for a pass that disagrees with its layers."""
    for name, timing in _timings(outcome):
        if (groups := two_levels(timing.samples)) is not None:
            (low, few), (high, rest) = ((f"{median(group):.3f} ms", len(group)) for group in groups)
            slow = [sample > groups[0][-1] for sample in timing.samples]
            order = ", one group after the other" if slow in (sorted(slow), sorted(slow, reverse=True)) else ""
            yield f"{name}: the runs fall into two groups, {low} ({few} runs) and {high} ({rest}){order}; measure again"
    together = sum(layer.timing.median for layer in outcome.layers)
    if outcome.on_card is not None and outcome.on_card.median > DISAGREE * together > 0:
        times = f"{outcome.on_card.median / together:.1f} × as long as its layers timed one by one"
        yield f"on the card: the pass takes {times}; the GPU may have changed its clock: measure again"


def _timings(outcome: Outcome) -> Iterator[tuple[str, Timing]]:
    """Yield every list of times that ``compare`` reads of the report, by name."""
    yield "end to end", outcome.end_to_end
    if outcome.compared is not None:
        yield f"end to end in {outcome.compared.precision}", outcome.compared.end_to_end
    for name, timing in (("on the card", outcome.on_card), ("raw copy", outcome.raw_copy)):
        if timing is not None:
            yield name, timing
    for layer in outcome.layers:
        yield layer.name, layer.timing
    for layer in () if outcome.on_card is None else outcome.op_times:  # on the CPU: the layers again
        yield f"{layer.name} alone", layer.timing
