"""Give two verdicts on labels, by pure functions: whether they agree with the reference, and how many are correct.

*Agreement*: only few labels may differ from the float64 reference, and only in near-ties, where the reference hardly
prefers one class. The margin of an image is its best logit minus the second best. Rounding changes a logit in
proportion to the magnitudes of its terms, even if these cancel. The check therefore compares the margin with the
largest sum of absolute terms of a logit, ``Reference.magnitudes``. It thus judges logits that are all tiny, all huge or
all shifted by one large bias by the resolution of their arithmetic.

*Answers*: the check compares the number of correct answers with the promise of the weights and the user's limit. An
accuracy near chance gives a warning.
"""

import numpy as np

from app.base.frozen import Frozen
from app.base.precision import BY_DTYPE

COUNT_SHARE = 0.001  # share of the images by which near-ties may change the count of correct answers
COUNTED = (100, 1_000, 5_000, 10_000)  # numbers of first test images with a promised count of correct answers
# Answers are near chance below a third of the way from 1/classes to all: 40 % of ten classes. The shipped networks
# and their old reports reach more than 76 %; mistaken weights or images gave 8 to 25 %. Fewer images prove too little.
NEAR_CHANCE = 1 / 3
FEWEST_FOR_CHANCE = 20
CAUSES = "fc1's rows not in the order H, W, C, another pixel scale, a white background (see docs/networks.md)"


class Reference(Frozen):
    """Results of the float64 reference.

    labels: (N,) uint8, the best class. margins: (N,) float64, best logit minus second best. magnitudes: (N,) float32,
    the largest sum of absolute terms of a logit, to which rounding errors are proportional; infinite or NaN if the
    scores exceed float32's range.
    """

    labels: np.ndarray
    margins: np.ndarray
    magnitudes: np.ndarray

    @property
    def has_constant_scores(self) -> bool:
        """Return whether all images have the same scores."""
        return all(len(np.unique(found)) == 1 for found in (self.labels, self.margins, self.magnitudes))


class Difference(Frozen):
    """An image whose label differs from the reference's. excused: whether the reference's margin is a near-tie."""

    index: int
    label: int
    reference: int
    margin: float
    excused: bool


class Agreement(Frozen):
    """The comparison of ``compared`` labels with a reference, and every difference.

    source: the reference's name. most: number of allowed differences, all of them near-ties. fault: why no labels can
    agree; "" if they can. steady: whether several passes gave the same labels.
    """

    source: str
    compared: int
    differences: tuple[Difference, ...]
    most: int
    fault: str = ""
    steady: bool = False

    @property
    def holds(self) -> bool:
        """Return whether at most ``most`` labels differ, all of them in near-ties, and there is no ``fault``."""
        few = len(self.differences) <= self.most
        return not self.fault and few and all(difference.excused for difference in self.differences)

    @property
    def verdict(self) -> str:
        """Return one sentence that says whether and why the labels agree."""
        if self.fault:
            return self.fault
        count = len(self.differences)
        differ = f"of {self.compared} labels differ from the {self.source}"
        bad = [difference for difference in self.differences if not difference.excused]
        if bad:
            worst = max(bad, key=lambda difference: difference.margin)
            return (
                f"{len(bad)} {differ} and are no near-ties "
                f"(image {worst.index}: {worst.label} instead of {worst.reference}, margin {worst.margin:.2g})"
            )
        if count > self.most:
            return f"{count} {differ}, in near-ties, but {self.most} at most may: scores are too close to tell apart"
        equal = f"all but {count} near-ties of {self.compared}" if count else f"all {self.compared}"
        passes = "every pass gave the same labels; of the first, " if self.steady else ""
        return f"{passes}{equal} labels equal the {self.source}"


class Answers(Frozen):
    """The number of correct answers, and whether it is large enough.

    correct: None for unlabelled data. expected: promised number. least: required share. Both may be None; passed is
    None if both are. verdict: the reason, in a sentence. warning: "" unless the answers are near chance.
    """

    passed: bool | None
    verdict: str
    warning: str
    correct: int | None
    total: int
    expected: int | None
    least: float | None


class Accuracy(Frozen):
    """Both verdicts on a run's labels: agreement with the reference, and the number of correct answers."""

    agreement: Agreement
    answers: Answers

    @property
    def passed(self) -> bool:
        """Return whether neither verdict failed."""
        return self.agreement.holds and self.answers.passed is not False


def top_two_margins(logits: np.ndarray) -> np.ndarray:
    """Return best minus second best of logits, (N, classes) → (N,). With a single class, margins are infinite."""
    if logits.shape[1] < 2:
        return np.full(len(logits), np.inf)
    best_two = np.partition(logits, -2, axis=1)[:, -2:]
    return best_two[:, 1] - best_two[:, 0]


def correct_counts(labels: np.ndarray, truth: np.ndarray) -> dict[int, int]:
    """Return how many of the first N labels are correct, for each N in ``COUNTED``. Arrays are (images,)."""
    return {count: int((labels[:count] == truth[:count]).sum()) for count in COUNTED if count <= len(labels)}


def images_in_share(share: float, images: int) -> int:
    """Return ``share`` (0..1) of the number ``images``, rounded, but at least 1."""
    return max(round(share * images), 1)


def compare_labels(labels: np.ndarray, reference: Reference, source: str, dtype: str = "float32") -> Agreement:
    """Compare labels (N,) with the reference's first N. source: name of the reference. dtype: type of the products."""
    compared, precision = min(len(labels), len(reference.labels)), BY_DTYPE[dtype]
    near = reference.margins < precision.near_tie * reference.magnitudes.astype(np.float64)
    differences = tuple(
        Difference(int(i), int(labels[i]), int(reference.labels[i]), float(reference.margins[i]), bool(near[i]))
        for i in np.flatnonzero(labels[:compared] != reference.labels[:compared])
    )
    most = images_in_share(precision.allowed_near_tie_share, compared)
    infinite = compared - int(np.isfinite(reference.magnitudes[:compared]).sum())
    fault = f"scores of {infinite} of {compared} images are beyond float32's range by the {source}" if infinite else ""
    return Agreement(source, compared, differences, most, fault)


def judge_answers(
    labels: np.ndarray,
    truth: np.ndarray | None,
    expected: int | None,
    agreement: Agreement,
    *,
    classes: int = 10,
    least: float | None = None,
) -> Accuracy:
    """Return two verdicts on the labels (N,): ``agreement``, and one on how many are correct.

    truth: correct labels (N,), None if unknown. classes: number of classes, 1 ÷ which is chance. least:
    required share of correct labels. expected: promised number of correct labels, or None. The labels may miss this
    number by as many answers as there are near-ties, but at most by ``COUNT_SHARE`` of the images.
    """
    total = len(labels)
    if truth is None:
        return Accuracy(agreement, Answers(None, "the images have no labels", "", None, total, expected, least))
    correct = int((labels == truth).sum())
    told: list[str] = []
    broken: list[str] = []
    if expected is not None:
        slack = min(len(agreement.differences), images_in_share(COUNT_SHARE, total))
        if abs(correct - expected) > slack:
            broken.append(f"{correct} correct where the weights file promises {expected}")
        else:
            within = "as promised" if correct == expected else f"({expected} promised, within the near-ties)"
            told.append(f"{correct} correct {within}")
    if least is not None:
        enough = correct >= least * total
        is_it = "at least" if enough else "less than"
        (told if enough else broken).append(f"{correct / total:.2%} is {is_it} the {least:.2%} asked for")
    chance, warning = 1 / classes, ""
    if total >= FEWEST_FOR_CHANCE and correct / total < chance + NEAR_CHANCE * (1 - chance):
        warning = f"near chance, which is {chance:.1%}; likely causes: {CAUSES}"
    verdict = "; ".join(broken or told) or "nothing is promised for these images, and no --min-accuracy given"
    passed = not broken if broken or told else None
    return Accuracy(agreement, Answers(passed, verdict, warning, correct, total, expected, least))
