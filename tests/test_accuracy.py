"""The accuracy check must be able to fail: near-ties are excused, nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from app.accuracy import COUNT_SHARE, NEAR_TIE, Accuracy, Agreement, agree, judge, top_two_margins
from app.kernels.problems import DTYPES

TRUTH = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], np.uint8)
CLEAR = np.ones(10)
ALL_DTYPES = pytest.mark.parametrize("dtype", NEAR_TIE)


def _changed(labels: np.ndarray, **changes: int) -> np.ndarray:
    """A copy with other labels: ``_changed(labels, i3=7)`` sets image 3's to 7."""
    changed = labels.copy()
    for name, label in changes.items():
        changed[int(name[1:])] = label
    return changed


def _margins(**changes: float) -> np.ndarray:
    margins = CLEAR.copy()
    for name, margin in changes.items():
        margins[int(name[1:])] = margin
    return margins


def _judge(
    labels: np.ndarray, margins: np.ndarray = CLEAR, expected: int | None = 10, dtype: str = "float32"
) -> Accuracy:
    """Judge labels where both the truth and the reference are TRUTH."""
    return judge(labels, TRUTH, expected, agree(labels, TRUTH, margins, "reference", dtype), dtype)


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


def test_margins_against_sorting() -> None:
    logits = np.random.default_rng(0).normal(size=(200, 10)).round(1)  # rounded: ties occur
    ordered = np.sort(logits, axis=1)
    margins = top_two_margins(logits)
    np.testing.assert_array_equal(margins, ordered[:, -1] - ordered[:, -2])
    assert (margins == 0).any()


def test_all_equal_passes() -> None:
    found = _judge(TRUTH)
    assert found.passed and found.agreement.holds and found.agreement.differences == ()
    assert (found.correct, found.total, found.expected) == (10, 10, 10)
    assert found.verdict == "all 10 labels equal the reference, 10 correct as promised"


def test_every_arithmetic_has_its_near_ties() -> None:
    """The coarser the arithmetic, the larger; only where numbers have 11 bits is the count held to a share."""
    assert set(NEAR_TIE) == set(DTYPES) and list(NEAR_TIE.values()) == sorted(NEAR_TIE.values())
    assert NEAR_TIE["float32"] < 1e-3
    assert set(COUNT_SHARE) == {"tfloat32", "float16"} and set(COUNT_SHARE.values()) == {0.001}


@ALL_DTYPES
def test_a_near_tie_is_excused(dtype: str) -> None:
    margin = NEAR_TIE[dtype] / 2
    found = _judge(_changed(TRUTH, i3=7), _margins(i3=margin), dtype=dtype)
    assert found.passed and found.correct == 9
    (difference,) = found.agreement.differences
    assert (difference.index, difference.label, difference.reference) == (3, 7, 3)
    assert difference.excused and difference.margin == margin
    assert "all but 1 near-ties of 10" in found.verdict


@ALL_DTYPES
@pytest.mark.parametrize("margin", [0.0, 0.5, np.inf, np.nan])
def test_any_other_difference_fails(margin: float, dtype: str) -> None:
    """At the threshold (0 stands for it), above it and, above all, where the reference's margin is not a number."""
    found = _judge(_changed(TRUTH, i3=7), _margins(i3=margin or NEAR_TIE[dtype]), dtype=dtype)
    assert not found.passed and not found.agreement.holds
    assert found.verdict.startswith(
        "1 of 10 labels differ from the reference and are no near-ties (image 3: 7 instead of 3"
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_half_precision_excuses_is_wrong_in_float32(dtype: str) -> None:
    labels, margins = _changed(TRUTH, i3=7), _margins(i3=0.01)
    assert _judge(labels, margins, dtype="float16").passed and _judge(labels, margins, dtype="tfloat32").passed
    assert not _judge(labels, margins, dtype=dtype).passed


def test_one_bad_label_among_near_ties_fails_and_is_the_one_named() -> None:
    labels = _changed(TRUTH, i1=5, i4=0, i8=2)
    found = _judge(labels, _margins(i1=1e-9, i4=0.25, i8=1e-9))
    assert not found.passed
    assert "1 of 10" in found.verdict and "image 4: 0 instead of 4, margin 0.25" in found.verdict


def test_the_worst_of_several_is_named() -> None:
    found = _judge(_changed(TRUTH, i1=5, i4=0), _margins(i1=0.1, i4=3.0))
    assert "2 of 10" in found.verdict and "image 4" in found.verdict


@pytest.mark.parametrize("expected", [9, 11])
def test_another_count_than_promised_fails(expected: int) -> None:
    found = _judge(TRUTH, expected=expected)
    assert not found.passed and found.verdict == f"10 correct where the weights file promises {expected}"


@pytest.mark.parametrize(("expected", "passed"), [(6, False), (7, True), (9, True), (11, True), (12, False)])
def test_each_near_tie_may_move_the_count_by_one(expected: int, passed: bool) -> None:
    """Nine are correct and two differ from the reference: from seven to eleven could have been promised."""
    labels = _changed(TRUTH, i2=0, i5=0)
    truth = _changed(TRUTH, i2=0)  # one near-tie fell on the right side, one on the wrong
    agreement = agree(labels, TRUTH, _margins(i2=1e-6, i5=1e-6), "reference")
    found = judge(labels, truth, expected, agreement)
    assert found.correct == 9 and found.passed == passed


@pytest.mark.parametrize(
    ("dtype", "images", "near_ties", "missing", "passed"),
    [
        ("float32", 10_000, 40, 40, True),  # each near-tie may move the count, however many there are
        ("float16", 10_000, 40, 10, True),
        ("float16", 10_000, 40, -10, True),
        ("float16", 10_000, 40, 11, False),  # one in a thousand images, and no more
        ("tfloat32", 10_000, 40, 11, False),
        ("float16", 10_000, 5, 5, True),
        ("float16", 10_000, 5, 6, False),  # nor more than there are near-ties
        ("float16", 100, 3, 1, True),  # one image at least
        ("float16", 100, 3, 2, False),
        ("float16", 100, 0, 1, False),
    ],
)
def test_the_count_of_rounded_arithmetic(dtype: str, images: int, near_ties: int, missing: int, passed: bool) -> None:
    reference = np.zeros(images, np.uint8)
    labels = reference.copy()
    labels[:near_ties] = 1
    agreement = agree(labels, reference, np.zeros(images), "reference", dtype)
    found = judge(labels, reference, images - near_ties + missing, agreement, dtype)
    assert found.passed is passed, found.verdict
    assert passed or found.verdict.endswith(f"correct where the weights file promises {images - near_ties + missing}")


@pytest.mark.parametrize("expected", [None, 10])
def test_unlabelled_data_is_held_against_the_reference_alone(expected: int | None) -> None:
    good = judge(TRUTH, None, expected, agree(TRUTH, TRUTH, CLEAR, "reference"))
    assert good.passed and good.correct is None and good.verdict == "all 10 labels equal the reference"
    labels = _changed(TRUTH, i0=9)
    assert not judge(labels, None, expected, agree(labels, TRUTH, CLEAR, "reference")).passed


def test_nothing_promised_needs_no_count() -> None:
    found = judge(TRUTH, _changed(TRUTH, i0=4, i1=4), None, agree(TRUTH, TRUTH, CLEAR, "reference"))
    assert found.passed and (found.correct, found.expected) == (8, None)
    assert "promised" not in found.verdict


@pytest.mark.parametrize(("labels", "reference", "compared"), [(10, 4, 4), (4, 10, 4), (3, 0, 0)])
def test_as_many_are_compared_as_both_have(labels: int, reference: int, compared: int) -> None:
    found = agree(TRUTH[:labels], TRUTH[:reference], CLEAR[:reference], "reference")
    assert found == Agreement("reference", compared, ())
    wrong = agree(TRUTH[:labels] + np.uint8(1), TRUTH[:reference], CLEAR[:reference], "reference")
    assert len(wrong.differences) == compared and wrong.holds == (compared == 0)
