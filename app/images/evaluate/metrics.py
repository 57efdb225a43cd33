"""Compute metrics of a classifier's answers by pure functions of arrays, without a network.

For N images: truth and answers are (N,) integers from 0; probabilities are (N, classes), finite. A share of zero images
is None.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from app.records.evaluate import Bin, Calibration, ClassAnswers, Macro, McNemar, Test

BINS = 15  # of equal width, in a calibration
EXACT: Final = "exact binomial"
APPROXIMATE: Final = "chi-square with continuity correction"
# Number of images correct for only one of two classifiers up to which the test is exact; there both tests differ by 0.1
# % at p = 0.05.
MOST_EXACT = 1000


def confusion_matrix(truth: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of images by truth (rows) and answer (columns): (classes, classes) int64."""
    cells = truth.astype(np.int64) * classes + answers
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def class_scores(matrix: np.ndarray) -> list[ClassAnswers]:
    """Return counts and scores of each class, computed from a confusion matrix."""
    sums = zip(matrix.sum(axis=1).tolist(), matrix.sum(axis=0).tolist(), matrix.diagonal().tolist(), strict=True)
    return [
        {
            "support": support,
            "predicted": predicted,
            "correct": correct,
            "precision": _share_or_none(correct, predicted),
            "recall": _share_or_none(correct, support),
            "f1": _share_or_none(2 * correct, support + predicted),
        }
        for support, predicted, correct in sums
    ]


def macro_averages(scores: Sequence[ClassAnswers]) -> Macro:
    """Return averages over the classes that occur as truth or answer; an undefined share counts as 0."""
    occurring = [score for score in scores if score["f1"] is not None]
    rows = ((score["precision"] or 0.0, score["recall"] or 0.0, score["f1"] or 0.0) for score in occurring)
    precision, recall, f1 = (sum(column) / len(occurring) for column in zip(*rows, strict=True))
    return {"precision": precision, "recall": recall, "f1": f1}


def second_choices(probabilities: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return the most probable class besides the answer, (N,); the lowest among equals. Of one class: the answer."""
    others = probabilities.astype(np.float64)
    np.put_along_axis(others, answers[:, None].astype(np.intp), -1.0, axis=1)
    return others.argmax(axis=1)


def confidences(probabilities: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return the probabilities of the answers, (N,) float64."""
    return np.take_along_axis(probabilities, answers[:, None].astype(np.intp), axis=1)[:, 0].astype(np.float64)


def calibration(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> tuple[list[Bin], Calibration]:
    """Return answers in bins by probability, and how far probability and accuracy differ.

    confidence: (N,) in [0, 1]; right: (N,) bool; N is at least 1.
    """
    places = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(places, minlength=bins).tolist()
    sums = [np.bincount(places, weights=values, minlength=bins).tolist() for values in (confidence, right)]
    found: list[Bin] = []
    gaps = []
    for at, (count, *totals) in enumerate(zip(counts, *sums, strict=True)):
        mean, share = (_share_or_none(total, count) for total in totals)
        found.append(
            {"low": at / bins, "high": (at + 1) / bins, "images": count, "confidence": mean, "accuracy": share}
        )
        gaps.append(0.0 if mean is None or share is None else abs(share - mean))
    expected = sum(one["images"] * gap for one, gap in zip(found, gaps, strict=True)) / len(confidence)
    return found, {"expected_error": expected, "greatest_error": max(gaps)}


def worst_mistakes(confidence: np.ndarray, right: np.ndarray, most: int) -> np.ndarray:
    """Return the indices of up to ``most`` wrong answers, the most confident first; among equals, the lowest."""
    wrong = np.flatnonzero(~right)
    return wrong[np.argsort(-confidence[wrong], kind="stable")[:most]]


def mcnemar(first: np.ndarray, second: np.ndarray) -> McNemar:
    """Return McNemar's test of two classifiers. first, second: whether each answer is right, (N,) bool."""
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    p_value, test = two_sided_p_value(only_first, only_second)
    return {
        "both_right": int((first & second).sum()),
        "only_first": only_first,
        "only_second": only_second,
        "both_wrong": int((~first & ~second).sum()),
        "p_value": p_value,
        "test": test,
    }


def two_sided_p_value(one: int, other: int) -> tuple[float, Test]:
    """Return the two-sided p-value of two counts that are equally likely a priori, and the name of the test."""
    tosses = one + other
    if tosses <= MOST_EXACT:
        tail = sum(math.comb(tosses, count) for count in range(min(one, other) + 1))
        return min(1.0, 2 * tail / 2**tosses), EXACT
    statistic = max(0, abs(one - other) - 1) ** 2 / tosses
    return math.erfc(math.sqrt(statistic / 2)), APPROXIMATE


def _share_or_none(part: float, whole: int) -> float | None:
    return part / whole if whole else None
