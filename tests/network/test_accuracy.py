"""The accuracy check must be able to fail: near-ties are excused, nothing else is."""

import numpy as np
import pytest

from app.base.precision import BY_DTYPE, ROWS
from app.network.verdicts import Accuracy, Agreement, Reference, compare_labels, judge_answers, top_two_margins

TRUTH = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], np.uint8)
CLEAR = np.ones(10)
ALL_DTYPES = pytest.mark.parametrize("dtype", BY_DTYPE)


def _changed(values: np.ndarray, **changes: float) -> np.ndarray:
    """A copy with other values: ``_changed(labels, i3=7)`` sets image 3's to 7."""
    changed = values.copy()
    for name, value in changes.items():
        changed[int(name[1:])] = value
    return changed


def _agree(labels: np.ndarray, reference: Reference, dtype: str = "float32") -> Agreement:
    return compare_labels(labels, reference, "reference", dtype)


def _judge(
    labels: np.ndarray, margins: np.ndarray = CLEAR, expected: int | None = 10, dtype: str = "float32"
) -> Accuracy:
    """Judge labels where both the truth and the reference are TRUTH, and the terms of its logits sum to 1."""
    return judge_answers(labels, TRUTH, expected, _agree(labels, of(TRUTH, margins), dtype))


def of(labels: np.ndarray, margins: np.ndarray, magnitude: float = 1.0) -> Reference:
    return Reference(labels, margins, np.full(len(labels), magnitude, np.float32))


@pytest.mark.parametrize(
    ("logits", "margin"),
    [
        ([1.0, 5.0, 3.0], 2.0),
        ([5.0, 5.0, 3.0], 0.0),
        ([-3.0, -1.0, -1.5], 0.5),
        ([2.0, 2.0, 2.0], 0.0),
        ([7.0], np.inf),
        ([1.0, np.nan, 0.0], np.nan),
        ([np.nan, np.nan, np.nan], np.nan),
        ([np.inf, 1.0, 0.0], np.inf),
        ([1.0, -np.inf, -np.inf], np.inf),
    ],
)
def test_margins(logits: list[float], margin: float) -> None:
    np.testing.assert_array_equal(top_two_margins(np.array([logits, logits])), [margin, margin])


SHARES = ((0.8, ""), (0.81, "80.00% is less than the 81.00% asked for"))


@pytest.mark.parametrize(
    ("wrong", "expected", "least", "told", "passed"),
    [
        (0, 10, None, "10 correct as promised", True),
        (0, 9, None, "10 correct where the weights file promises 9", False),
        (0, 11, None, "10 correct where the weights file promises 11", False),
        (2, None, None, "nothing is promised", None),
        *((2, promised, *share, not share[1] and promised != 5) for promised in (None, 8, 5) for share in SHARES),
    ],
)
def test_promise_and_share(
    wrong: int, expected: int | None, least: float | None, told: str, passed: bool | None
) -> None:
    truth = TRUTH.copy()
    truth[:wrong] = 4
    found = judge_answers(TRUTH, truth, expected, _agree(TRUTH, of(TRUTH, CLEAR)), least=least)
    assert found.agreement.holds and found.agreement.differences == ()
    assert found.agreement.verdict == "all 10 labels equal the reference"
    assert (found.answers.correct, found.answers.total, found.answers.expected) == (10 - wrong, 10, expected)
    assert found.answers.passed is passed and found.passed is (passed is not False) and told in found.answers.verdict


def test_every_arithmetic_has_its_near_ties() -> None:
    """The coarser the arithmetic, the larger, and the more of them."""
    near, shares = [row.near_tie for row in ROWS], [row.allowed_near_tie_share for row in ROWS]
    assert near == sorted(near) and BY_DTYPE["float32"].near_tie < 1e-5
    assert shares == sorted(shares) and BY_DTYPE["float16"].allowed_near_tie_share == 0.01


@ALL_DTYPES
def test_a_near_tie_is_excused(dtype: str) -> None:
    margin = BY_DTYPE[dtype].near_tie / 2
    found = _judge(_changed(TRUTH, i3=7), _changed(CLEAR, i3=margin), dtype=dtype)
    assert found.passed and found.answers.correct == 9
    (difference,) = found.agreement.differences
    assert (difference.index, difference.label, difference.reference) == (3, 7, 3)
    assert difference.excused and difference.margin == margin
    assert found.agreement.verdict == "all but 1 near-ties of 10 labels equal the reference"


@ALL_DTYPES
@pytest.mark.parametrize("margin", [0.0, 0.5, np.inf, np.nan])
def test_any_other_difference_fails(margin: float, dtype: str) -> None:
    """At the threshold (0 stands for it), above it and, above all, where the reference's margin is not a number."""
    found = _judge(_changed(TRUTH, i3=7), _changed(CLEAR, i3=margin or BY_DTYPE[dtype].near_tie), dtype=dtype)
    assert not found.passed and not found.agreement.holds
    told = "1 of 10 labels differ from the reference and are no near-ties (image 3: 7 instead of 3"
    assert found.agreement.verdict.startswith(told)


def test_the_worst_of_the_bad_labels_is_named() -> None:
    """Among near-ties, too."""
    found = _judge(_changed(TRUTH, i1=5, i4=0, i8=2), _changed(CLEAR, i1=0.1, i4=3.0, i8=1e-9))
    assert not found.passed and "2 of 10" in found.agreement.verdict
    assert "image 4: 0 instead of 4, margin 3" in found.agreement.verdict


@pytest.mark.parametrize(
    ("images", "near_ties", "missing", "passed"),
    [
        (10_000, 10, 10, True),  # each near-tie may move the count
        (10_000, 10, -10, True),
        (10_000, 10, 11, False),  # one in a thousand images, and no more
        (10_000, 5, 6, False),  # nor more than there are near-ties
        (100, 1, 1, True),  # one image at least
        (100, 0, 1, False),
    ],
)
def test_near_ties_move_the_count(images: int, near_ties: int, missing: int, passed: bool) -> None:
    reference = np.zeros(images, np.uint8)
    labels = reference.copy()
    labels[:near_ties] = 1
    agreement = _agree(labels, of(reference, np.zeros(images)))
    assert agreement.holds
    found = judge_answers(labels, reference, images - near_ties + missing, agreement)
    assert found.passed is passed, found.answers.verdict
    promised = f"correct where the weights file promises {images - near_ties + missing}"
    assert passed or found.answers.verdict.endswith(promised)


@ALL_DTYPES
@pytest.mark.parametrize("images", [1, 40, 1_000, 10_000])
def test_near_ties_are_few_in_every_arithmetic(images: int, dtype: str) -> None:
    """However near: one image, or the share of them that the arithmetic allows."""
    reference = of(np.zeros(images, np.uint8), np.zeros(images))
    most = max(1, round(BY_DTYPE[dtype].allowed_near_tie_share * images))
    labels = np.zeros(images, np.uint8)
    labels[:most] = 1
    assert _agree(labels, reference, dtype).holds
    labels[: most + 1] = 1
    found = _agree(labels, reference, dtype)
    assert found.holds == (images == most)  # a single image has no second
    assert images == most or found.verdict.endswith(
        f"{most + 1} of {images} labels differ from the reference, in near-ties, but {most} at most may: "
        "scores are too close to tell apart"
    )


@ALL_DTYPES
def test_a_near_tie_grows_with_the_terms_of_the_scores(dtype: str) -> None:
    """Image 3 is a near-tie among terms of 1, none among terms of a hundredth, and one again if the margin is, too."""
    labels, margins = _changed(TRUTH, i3=7), _changed(CLEAR, i3=BY_DTYPE[dtype].near_tie / 2)
    for scale, factor, holds in ((1.0, 1.0, True), (0.01, 1.0, False), (0.01, 0.01, True), (1e30, 1e30, True)):
        assert _agree(labels, of(TRUTH, margins * factor, scale), dtype).holds is holds


@pytest.mark.parametrize("magnitude", [np.nan, np.inf])
@pytest.mark.parametrize("margin", [1.0, np.nan, np.inf])
def test_what_is_not_finite_never_agrees(magnitude: float, margin: float) -> None:
    reference = of(TRUTH, _changed(CLEAR, i2=margin))
    reference.magnitudes[2] = magnitude
    found = _agree(TRUTH, reference)
    assert not found.holds and found.verdict == "scores of 1 of 10 images are beyond float32's range by the reference"
    assert _agree(TRUTH[:2], reference).holds  # of the images compared


def test_constant_scores() -> None:
    labels = np.full(3, 4, np.uint8)
    assert of(labels, np.ones(3)).has_constant_scores and of(labels, np.full(3, np.nan)).has_constant_scores
    assert not of(labels, np.array([1.0, 1.0, 2.0])).has_constant_scores
    of_one_class = Reference(labels, np.full(3, np.inf), np.array([1, 2, 1], np.float32))
    assert not of_one_class.has_constant_scores


@pytest.mark.parametrize("expected", [None, 10])
def test_unlabelled_data_is_held_against_the_reference_alone(expected: int | None) -> None:
    good = judge_answers(TRUTH, None, expected, _agree(TRUTH, of(TRUTH, CLEAR)))
    assert good.passed and good.answers.correct is None and good.answers.passed is None
    assert (good.answers.verdict, good.answers.warning) == ("the images have no labels", "")
    labels = _changed(TRUTH, i0=9)
    assert not judge_answers(labels, None, expected, _agree(labels, of(TRUTH, CLEAR))).passed


@pytest.mark.parametrize(
    ("correct", "total", "classes", "warned"),
    [
        (3_999, 10_000, 10, True),
        (4_000, 10_000, 10, False),
        (0, 19, 10, False),  # too few to tell
        (0, 20, 10, True),
        (660, 1_000, 2, True),
        (670, 1_000, 2, False),
        (50, 50, 1, False),
    ],
)
def test_answers_near_chance_are_warned_of(correct: int, total: int, classes: int, warned: bool) -> None:
    labels = np.zeros(total, np.uint8)
    truth = np.where(np.arange(total) < correct, 0, 1).astype(np.uint8)
    found = judge_answers(labels, truth, None, _agree(labels, of(labels, np.ones(total))), classes=classes)
    assert found.passed and bool(found.answers.warning) is warned
    if warned:
        assert found.answers.warning.startswith(f"near chance, which is {1 / classes:.1%}; likely causes: fc1's rows")


@pytest.mark.parametrize(("labels", "reference", "compared"), [(10, 4, 4), (4, 10, 4), (3, 0, 0)])
def test_as_many_are_compared_as_both_have(labels: int, reference: int, compared: int) -> None:
    stored = of(TRUTH[:reference], CLEAR[:reference])
    assert _agree(TRUTH[:labels], stored) == Agreement("reference", compared, (), 1)
    wrong = _agree(TRUTH[:labels] + np.uint8(1), stored)
    assert len(wrong.differences) == compared and wrong.holds == (compared == 0)
