"""Test the metrics against counting image by image, and McNemar's test against all outcomes of coin tosses."""

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.images.evaluate import results
from app.images.evaluate.results import APPROXIMATE, EXACT, MOST_EXACT, mcnemar, two_sided_p_value


@st.composite
def answered(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Labels and answers of some images, and the number of classes."""
    classes = draw(st.integers(1, 6))
    pairs = draw(st.lists(st.tuples(*[st.integers(0, classes - 1)] * 2), min_size=1, max_size=40))
    truth, answers = np.array(pairs, np.uint8).T
    return truth, answers, classes


@settings(max_examples=60)
@given(answered())
def test_by_counting(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    truth, answers, classes = case
    pairs = [*zip(truth.tolist(), answers.tolist(), strict=True)]
    matrix = results.confusion_matrix(truth, answers, classes)
    assert matrix.tolist() == [[pairs.count((is_, answer)) for answer in range(classes)] for is_ in range(classes)]
    scores = results.class_scores(matrix)
    shares: list[tuple[Fraction, Fraction, Fraction]] = []
    for label, score in enumerate(scores):
        own = [answer for is_, answer in pairs if is_ == label]
        named = [is_ for is_, answer in pairs if answer == label]
        precision = Fraction(named.count(label), len(named)) if named else None
        recall = Fraction(own.count(label), len(own)) if own else None
        assert same(score["precision"], precision) and same(score["recall"], recall)
        one, other = precision or Fraction(0), recall or Fraction(0)
        f1 = 2 * one * other / (one + other) if one + other else Fraction(0)
        assert same(score["f1"], f1 if own or named else None)
        if own or named:
            shares.append((one, other, f1))
    averages = results.macro_averages(scores)
    found = (averages["precision"], averages["recall"], averages["f1"])
    assert all(
        same(one, sum(column) / len(shares)) for one, column in zip(found, zip(*shares, strict=True), strict=True)
    )


def same(found: float | None, expected: Any) -> bool:
    return found is expected is None or found == pytest.approx(float(expected), abs=1e-12)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 96), st.booleans()), min_size=1, max_size=60), st.sampled_from([1, 3, 15]))
def test_calibration_by_fractions(images: list[tuple[int, bool]], bins: int) -> None:
    """Probabilities are whole 96ths, so that many lie on the border of a bin, to whose left they belong."""
    found, error = results.calibration(
        np.array([part / 96 for part, _ in images]), np.array([right for _, right in images]), bins
    )
    expected, gaps = Fraction(0), []
    for at, one in enumerate(found):
        low, high = Fraction(at, bins), Fraction(at + 1, bins)
        inside = [(part, right) for part, right in images if low < Fraction(part, 96) <= high or (not at and not part)]
        assert (one["low"], one["high"], one["images"]) == (at / bins, (at + 1) / bins, len(inside))
        if not inside:
            assert one["confidence"] is one["accuracy"] is None
            continue
        confidence = Fraction(sum(part for part, _ in inside), 96 * len(inside))
        accuracy = Fraction(sum(right for _, right in inside), len(inside))
        assert same(one["confidence"], confidence) and same(one["accuracy"], accuracy)
        gaps.append(abs(accuracy - confidence))
        expected += gaps[-1] * Fraction(len(inside), len(images))
    assert same(error["expected_error"], expected) and same(error["greatest_error"], max(gaps))
    assert len(results.calibration(np.ones(1), np.ones(1, bool))[0]) == 15


def test_second_choices() -> None:
    """The most probable class besides the answer, which need not be the most probable; the first of equal ones."""
    rows = [[0.2, 0.5, 0.3], [0.4, 0.2, 0.4], [0.1, 0.8, 0.1], [0.0, 0.0, 1.0]]
    probabilities = np.array(rows, np.float32)
    assert results.second_choices(probabilities, np.array([1, 2, 0, 0], np.uint8)).tolist() == [2, 0, 1, 2]
    assert results.second_choices(np.ones((2, 1), np.float32), np.zeros(2, np.uint8)).tolist() == [0, 0]
    np.testing.assert_array_equal(probabilities, np.array(rows, np.float32))  # as they were


def test_confidences() -> None:
    probabilities = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    assert results.confidences(probabilities, np.array([1, 0], np.uint8)).tolist() == [0.75, 0.5]


def test_worst_mistakes() -> None:
    confidence = np.array([0.9, 0.5, 0.7, 0.9, 0.99, 0.2])
    right = np.array([False, False, False, False, True, False])
    assert results.worst_mistakes(confidence, right, 4).tolist() == [0, 3, 2, 1]
    assert results.worst_mistakes(confidence, right, 25).tolist() == [0, 3, 2, 1, 5]
    assert results.worst_mistakes(confidence, np.ones(6, bool), 25).tolist() == []


# --- McNemar's test


def test_counts() -> None:
    first = np.array([1, 1, 1, 0, 0, 0, 0, 1], bool)
    second = np.array([1, 1, 0, 1, 1, 0, 1, 1], bool)
    found = mcnemar(first, second)
    assert [*found.values()] == [3, 1, 3, 1, 2 * (1 + 4) / 16, EXACT]


@pytest.mark.parametrize("tosses", range(11))
def test_p_by_every_outcome(tosses: int) -> None:
    """The share of the outcomes of so many tosses that are at least as uneven."""
    heads = [sum(outcome) for outcome in product((0, 1), repeat=tosses)]
    for one in range(tosses + 1):
        uneven = sum(abs(2 * count - tosses) >= abs(2 * one - tosses) for count in heads)
        assert two_sided_p_value(one, tosses - one) == (pytest.approx(uneven / len(heads), rel=1e-15), EXACT)


def test_many_images_are_approximated() -> None:
    tosses = MOST_EXACT + 1
    for one in range(440, 501, 10):
        exact = min(1.0, 2 * sum(math.comb(tosses, count) for count in range(one + 1)) / 2**tosses)
        for pair in ((one, tosses - one), (tosses - one, one)):
            assert two_sided_p_value(*pair) == (pytest.approx(exact, rel=0.02), APPROXIMATE)
    assert two_sided_p_value(500, 500) == (1.0, EXACT)
    assert two_sided_p_value(0, MOST_EXACT) == (pytest.approx(2.0 ** (1 - MOST_EXACT), rel=1e-15), EXACT)
    assert two_sided_p_value(0, 100_000) == (0.0, APPROXIMATE) and two_sided_p_value(50_000, 50_000) == (
        1.0,
        APPROXIMATE,
    )
