"""The accuracy check: correct answers against what is promised, and agreement with the float64 reference.

Pure functions over labels. A label may differ from the reference's only where the reference itself hardly
prefers one class: where its margin, the best logit minus the second best, is below ``NEAR_TIE``, which depends on
how numbers are multiplied. The promised count of correct answers must be met within the number of such labels, and,
where numbers are rounded to 11 bits, within ``COUNT_SHARE`` of the images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NEAR_TIE = {"float64": 1e-4, "float32": 1e-4, "float16x2": 1e-4, "tfloat32": 0.05, "float16": 0.2}
COUNT_SHARE = {"tfloat32": 0.001, "float16": 0.001}
COUNTED = (100, 1_000, 5_000, 10_000)  # first test images over which correct answers are promised


@dataclass(frozen=True)
class Difference:
    """One image whose label is not the reference's; ``excused`` if the reference's margin is a near-tie."""

    index: int
    label: int
    reference: int
    margin: float
    excused: bool


@dataclass(frozen=True)
class Agreement:
    """``compared`` labels held against a reference, and every difference."""

    source: str
    compared: int
    differences: tuple[Difference, ...]

    @property
    def holds(self) -> bool:
        """Whether every difference is a near-tie."""
        return all(difference.excused for difference in self.differences)


@dataclass(frozen=True)
class Accuracy:
    """The outcome. correct is None for unlabelled data, expected where nothing is promised."""

    correct: int | None
    total: int
    expected: int | None
    agreement: Agreement
    passed: bool
    verdict: str


def top_two_margins(logits: np.ndarray) -> np.ndarray:
    """(N, classes) logits → (N,) best minus second best; a single class has an infinite margin."""
    if logits.shape[1] < 2:
        return np.full(len(logits), np.inf)
    best_two = np.partition(logits, -2, axis=1)[:, -2:]
    return best_two[:, 1] - best_two[:, 0]


def correct_counts(labels: np.ndarray, truth: np.ndarray) -> dict[int, int]:
    """First images → correct answers among them, for the numbers in ``COUNTED`` that there are; arrays (N,)."""
    return {count: int((labels[:count] == truth[:count]).sum()) for count in COUNTED if count <= len(labels)}


def agree(
    labels: np.ndarray, reference: np.ndarray, margins: np.ndarray, source: str, dtype: str = "float32"
) -> Agreement:
    """Compare as many labels as the reference has; all arrays (N,). dtype: how numbers were multiplied."""
    compared = min(len(labels), len(reference))
    differences = tuple(
        Difference(int(i), int(labels[i]), int(reference[i]), float(margins[i]), bool(margins[i] < NEAR_TIE[dtype]))
        for i in np.flatnonzero(labels[:compared] != reference[:compared])
    )
    return Agreement(source, compared, differences)


def judge(
    labels: np.ndarray,
    truth: np.ndarray | None,
    expected: int | None,
    agreement: Agreement,
    dtype: str = "float32",
) -> Accuracy:
    """Labels (N,) against the truth (N,) or None, the promised correct count or None, and the reference.

    Passes if every label agrees with the reference save near-ties, and the promised count is met within the
    number of those near-ties, or the share that the dtype allows if that is less.
    """
    correct = None if truth is None else int((labels == truth).sum())
    near_ties = slack = len(agreement.differences)
    if dtype in COUNT_SHARE:
        slack = min(slack, max(round(COUNT_SHARE[dtype] * len(labels)), 1))
    bad = [difference for difference in agreement.differences if not difference.excused]
    if bad:
        worst = max(bad, key=lambda difference: difference.margin)
        verdict = (
            f"{len(bad)} of {agreement.compared} labels differ from the {agreement.source} and are no near-ties "
            f"(image {worst.index}: {worst.label} instead of {worst.reference}, margin {worst.margin:.2g})"
        )
        return Accuracy(correct, len(labels), expected, agreement, False, verdict)
    if correct is not None and expected is not None and abs(correct - expected) > slack:
        verdict = f"{correct} correct where the weights file promises {expected}"
        return Accuracy(correct, len(labels), expected, agreement, False, verdict)
    verdict = f"all {agreement.compared}" if not near_ties else f"all but {near_ties} near-ties of {agreement.compared}"
    verdict += f" labels equal the {agreement.source}"
    if correct is not None and expected is not None:
        verdict += f", {correct} correct"
        verdict += " as promised" if correct == expected else f" ({expected} promised, within the near-ties)"
    return Accuracy(correct, len(labels), expected, agreement, True, verdict)
