"""Metrics of a classifier's answers: pure functions of arrays, without a network.

Of N images: truth and answers (N,) integers from 0; probabilities (N, classes), finite.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BINS = 15  # of a calibration, equally wide


@dataclass(frozen=True)
class ClassScore:
    """What became of one class. support: images of it; predicted: answers that name it; correct: those that are right.

    A share of nothing is None.
    """

    support: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float | None:
        """Share of right answers among those that name the class."""
        return _share(self.correct, self.predicted)

    @property
    def recall(self) -> float | None:
        """Share of the class's images that are recognised."""
        return _share(self.correct, self.support)

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall; 0 if one of them is undefined, None if both are."""
        return _share(2 * self.correct, self.support + self.predicted)


@dataclass(frozen=True)
class Macro:
    """Averages over the classes, each with the same weight."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Bin:
    """Answers with a probability above ``low`` and up to ``high``.

    confidence: their mean probability. accuracy: the share of right ones. Both are None if there are no images.
    """

    low: float
    high: float
    images: int
    confidence: float | None
    accuracy: float | None

    @property
    def gap(self) -> float:
        """Distance of the probability from the share of right answers; 0 without images."""
        return 0.0 if self.confidence is None or self.accuracy is None else abs(self.accuracy - self.confidence)


@dataclass(frozen=True)
class Calibration:
    """How far probabilities are from the shares of right answers.

    expected_error: the mean gap of the bins, weighted by images. greatest_error: the largest gap.
    """

    bins: tuple[Bin, ...]
    expected_error: float
    greatest_error: float


def confusion_matrix(truth: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """Count images by truth (rows) and answer (columns): (classes, classes) int64."""
    cells = truth.astype(np.int64) * classes + answers
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def class_scores(matrix: np.ndarray) -> list[ClassScore]:
    """Return each class's counts from a confusion matrix."""
    sums = zip(matrix.sum(axis=1), matrix.sum(axis=0), matrix.diagonal(), strict=True)
    return [ClassScore(int(support), int(predicted), int(correct)) for support, predicted, correct in sums]


def macro_averages(scores: Sequence[ClassScore]) -> Macro:
    """Average over the classes that occur in truth or answers; an undefined share counts as 0."""
    occurring = [score for score in scores if score.f1 is not None]
    columns = zip(*((score.precision or 0.0, score.recall or 0.0, score.f1 or 0.0) for score in occurring), strict=True)
    return Macro(*(sum(column) / len(occurring) for column in columns))


def second_choices(probabilities: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return the most probable class besides the answer, (N,): the lowest of equal ones. Of one class: the answer."""
    others = probabilities.astype(np.float64)
    np.put_along_axis(others, answers[:, None].astype(np.intp), -1.0, axis=1)
    return others.argmax(axis=1)


def confidences(probabilities: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return the probabilities of the answers, (N,) float64."""
    return np.take_along_axis(probabilities, answers[:, None].astype(np.intp), axis=1)[:, 0].astype(np.float64)


def calibration(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> Calibration:
    """Sort the answers into bins by probability. confidence: (N,) in [0, 1]; right: (N,) bool; N is at least 1."""
    places = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(places, minlength=bins)
    sums = [np.bincount(places, weights=values, minlength=bins) for values in (confidence, right)]
    found = tuple(
        Bin(at / bins, (at + 1) / bins, int(count), *(float(total[at] / count) if count else None for total in sums))
        for at, count in enumerate(counts)
    )
    expected = sum(one.images * one.gap for one in found) / len(confidence)
    return Calibration(found, expected, max(one.gap for one in found))


def worst_mistakes(confidence: np.ndarray, right: np.ndarray, most: int) -> np.ndarray:
    """Return the indexes of up to ``most`` wrong answers, the most confident first; of equal ones, the first image."""
    wrong = np.flatnonzero(~right)
    return wrong[np.argsort(-confidence[wrong], kind="stable")[:most]]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
