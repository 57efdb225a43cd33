"""Test both verdicts on labels: near-ties are excused, every other difference fails."""

import numpy as np
import pytest

from app.base.precision import BY_DTYPE, ROWS
from app.network.verdicts import Accuracy, Agreement, Reference, compare_labels, judge_answers, top_two_margins

TRUTH = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], np.uint8)
CLEAR = np.ones(10)
ALL_DTYPES = pytest.mark.parametrize("dtype", BY_DTYPE)


def _replace(values: np.ndarray, **changes: float) -> np.ndarray:
    """Return a copy with other values: ``_replace(labels, i3=7)`` sets the value of image 3 to 7."""
    changed = values.copy()
    for name, value in changes.items():
        changed[int(name[1:])] = value
    return changed


def _compare(labels: np.ndarray, reference: Reference, dtype: str = "float32") -> Agreement:
    return compare_labels(labels, reference, "reference", dtype)


def judge(
    labels: np.ndarray, margins: np.ndarray = CLEAR, expected: int | None = 10, dtype: str = "float32"
) -> Accuracy:
    """Judge labels against correct labels TRUTH and a reference with labels TRUTH and magnitudes 1."""
    return judge_answers(labels, TRUTH, expected, _compare(labels, make_reference(TRUTH, margins), dtype))


def make_reference(labels: np.ndarray, margins: np.ndarray, magnitude: float = 1.0) -> Reference:
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
def test_margins_of_special_values(logits: list[float], margin: float) -> None:
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
def test_promised_count_and_required_share(
    wrong: int, expected: int | None, least: float | None, told: str, passed: bool | None
) -> None:
    truth = TRUTH.copy()
    truth[:wrong] = 4
    found = judge_answers(TRUTH, truth, expected, _compare(TRUTH, make_reference(TRUTH, CLEAR)), least=least)
    assert found.agreement.holds and found.agreement.differences == ()
    assert found.agreement.verdict == "all 10 labels equal the reference"
    assert (found.answers.correct, found.answers.total, found.answers.expected) == (10 - wrong, 10, expected)
    assert found.answers.passed is passed and found.passed is (passed is not False) and told in found.answers.verdict


def test_coarser_arithmetic_allows_more_near_ties() -> None:
    """Both the margin of a near-tie and the allowed share of near-ties grow."""
    near, shares = [row.near_tie for row in ROWS], [row.allowed_near_tie_share for row in ROWS]
    assert near == sorted(near) and BY_DTYPE["float32"].near_tie < 1e-5
    assert shares == sorted(shares) and BY_DTYPE["float16"].allowed_near_tie_share == 0.01


@ALL_DTYPES
def test_a_near_tie_is_excused(dtype: str) -> None:
    margin = BY_DTYPE[dtype].near_tie / 2
    found = judge(_replace(TRUTH, i3=7), _replace(CLEAR, i3=margin), dtype=dtype)
    assert found.passed and found.answers.correct == 9
    (difference,) = found.agreement.differences
    assert (difference.index, difference.label, difference.reference) == (3, 7, 3)
    assert difference.excused and difference.margin == margin
    assert found.agreement.verdict == "all but 1 near-ties of 10 labels equal the reference"


@ALL_DTYPES
@pytest.mark.parametrize("margin", [0.0, 0.5, np.inf, np.nan])
def test_any_other_difference_fails(margin: float, dtype: str) -> None:
    """The margin is at the threshold (given as 0), above it, or not a number."""
    found = judge(_replace(TRUTH, i3=7), _replace(CLEAR, i3=margin or BY_DTYPE[dtype].near_tie), dtype=dtype)
    assert not found.passed and not found.agreement.holds
    told = "1 of 10 labels differ from the reference and are no near-ties (image 3: 7 instead of 3"
    assert found.agreement.verdict.startswith(told)


def test_the_verdict_names_the_worst_label() -> None:
    """One of the three wrong labels is an excused near-tie."""
    found = judge(_replace(TRUTH, i1=5, i4=0, i8=2), _replace(CLEAR, i1=0.1, i4=3.0, i8=1e-9))
    assert not found.passed and "2 of 10" in found.agreement.verdict
    assert "image 4: 0 instead of 4, margin 3" in found.agreement.verdict


@pytest.mark.parametrize(
    ("images", "near_ties", "missing", "passed"),
    [
        (10_000, 10, 10, True),  # each near-tie may change the count by 1
        (10_000, 10, -10, True),
        (10_000, 10, 11, False),  # at most one image in a thousand
        (10_000, 5, 6, False),  # at most the number of near-ties
        (100, 1, 1, True),  # at least one image is allowed
        (100, 0, 1, False),
    ],
)
def test_near_ties_may_change_the_correct_count(images: int, near_ties: int, missing: int, passed: bool) -> None:
    reference = np.zeros(images, np.uint8)
    labels = reference.copy()
    labels[:near_ties] = 1
    agreement = _compare(labels, make_reference(reference, np.zeros(images)))
    assert agreement.holds
    found = judge_answers(labels, reference, images - near_ties + missing, agreement)
    assert found.passed is passed, found.answers.verdict
    promised = f"correct where the weights file promises {images - near_ties + missing}"
    assert passed or found.answers.verdict.endswith(promised)


@ALL_DTYPES
@pytest.mark.parametrize("images", [1, 40, 1_000, 10_000])
def test_the_number_of_near_ties_is_limited(images: int, dtype: str) -> None:
    """The limit is the arithmetic's share of the images, but at least one image."""
    reference = make_reference(np.zeros(images, np.uint8), np.zeros(images))
    most = max(1, round(BY_DTYPE[dtype].allowed_near_tie_share * images))
    labels = np.zeros(images, np.uint8)
    labels[:most] = 1
    assert _compare(labels, reference, dtype).holds
    labels[: most + 1] = 1
    found = _compare(labels, reference, dtype)
    assert found.holds == (images == most)  # with one image, no further label can differ
    assert images == most or found.verdict.endswith(
        f"{most + 1} of {images} labels differ from the reference, in near-ties, but {most} at most may: "
        "scores are too close to tell apart"
    )


@ALL_DTYPES
def test_near_ties_are_relative_to_the_magnitudes(dtype: str) -> None:
    """One margin is a near-tie at magnitude 1, but not at 0.01; scaled with the magnitude, it always is."""
    labels, margins = _replace(TRUTH, i3=7), _replace(CLEAR, i3=BY_DTYPE[dtype].near_tie / 2)
    for scale, factor, holds in ((1.0, 1.0, True), (0.01, 1.0, False), (0.01, 0.01, True), (1e30, 1e30, True)):
        assert _compare(labels, make_reference(TRUTH, margins * factor, scale), dtype).holds is holds


@pytest.mark.parametrize("magnitude", [np.nan, np.inf])
@pytest.mark.parametrize("margin", [1.0, np.nan, np.inf])
def test_scores_that_are_not_finite_never_agree(magnitude: float, margin: float) -> None:
    reference = make_reference(TRUTH, _replace(CLEAR, i2=margin))
    reference.magnitudes[2] = magnitude
    found = _compare(TRUTH, reference)
    assert not found.holds and found.verdict == "scores of 1 of 10 images are beyond float32's range by the reference"
    assert _compare(TRUTH[:2], reference).holds  # image 2 is not compared


def test_has_constant_scores() -> None:
    labels = np.full(3, 4, np.uint8)
    assert make_reference(labels, np.ones(3)).has_constant_scores
    assert make_reference(labels, np.full(3, np.nan)).has_constant_scores
    assert not make_reference(labels, np.array([1.0, 1.0, 2.0])).has_constant_scores
    of_one_class = Reference(labels, np.full(3, np.inf), np.array([1, 2, 1], np.float32))
    assert not of_one_class.has_constant_scores


@pytest.mark.parametrize("expected", [None, 10])
def test_unlabelled_images_are_compared_with_the_reference_only(expected: int | None) -> None:
    good = judge_answers(TRUTH, None, expected, _compare(TRUTH, make_reference(TRUTH, CLEAR)))
    assert good.passed and good.answers.correct is None and good.answers.passed is None
    assert (good.answers.verdict, good.answers.warning) == ("the images have no labels", "")
    labels = _replace(TRUTH, i0=9)
    assert not judge_answers(labels, None, expected, _compare(labels, make_reference(TRUTH, CLEAR))).passed


@pytest.mark.parametrize(
    ("correct", "total", "classes", "warned"),
    [
        (3_999, 10_000, 10, True),
        (4_000, 10_000, 10, False),
        (0, 19, 10, False),  # too few images for a warning
        (0, 20, 10, True),
        (660, 1_000, 2, True),
        (670, 1_000, 2, False),
        (50, 50, 1, False),
    ],
)
def test_answers_near_chance_give_a_warning(correct: int, total: int, classes: int, warned: bool) -> None:
    labels = np.zeros(total, np.uint8)
    truth = np.where(np.arange(total) < correct, 0, 1).astype(np.uint8)
    agreement = _compare(labels, make_reference(labels, np.ones(total)))
    found = judge_answers(labels, truth, None, agreement, classes=classes)
    assert found.passed and bool(found.answers.warning) is warned
    if warned:
        assert found.answers.warning.startswith(f"near chance, which is {1 / classes:.1%}; likely causes: fc1's rows")


@pytest.mark.parametrize(("labels", "reference", "compared"), [(10, 4, 4), (4, 10, 4), (3, 0, 0)])
def test_labels_are_compared_up_to_the_shorter_length(labels: int, reference: int, compared: int) -> None:
    stored = make_reference(TRUTH[:reference], CLEAR[:reference])
    assert _compare(TRUTH[:labels], stored) == Agreement("reference", compared, (), 1)
    wrong = _compare(TRUTH[:labels] + np.uint8(1), stored)
    assert len(wrong.differences) == compared and wrong.holds == (compared == 0)
