"""Compute metrics of a classifier's answers, and build the JSON document of ``evaluate`` from them.

For N images, truth (correct labels) and answers are (N,) integers from 0, and probabilities are (N, classes) and
finite. A share of zero images is None. docs/evaluate.md describes the document.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from app.base.frozen import Frozen
from app.records import evaluate as records
from app.records.evaluate import Bin, Calibration, ClassAnswers, Evaluate, EvaluatedNetwork, Macro, McNemar, Test
from app.records.parts import Card, Processor
from data_tools.dataset import Dataset

BINS = 15  # of a calibration, of equal width
EXACT: Final = "exact binomial"
APPROXIMATE: Final = "chi-square with continuity correction"
# The most images that only one of two classifiers has right for which the exact test is used; there the two tests
# differ by 0.1 % at p = 0.05.
MOST_EXACT = 1000


def confusion_matrix(truth: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of images of each true class (row) with each answer (column): (classes, classes) int64.

    truth, answers: the classes of N images, (N,) integers from 0.
    """
    cells = truth.astype(np.int64) * classes + answers
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def class_scores(matrix: np.ndarray) -> list[ClassAnswers]:
    """Return counts, precision, recall and F1 of each class. matrix: confusion matrix, (classes, classes) integers."""
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
    """Return averages of the scores over the classes that occur as truth or answer; an undefined score counts as 0."""
    occurring = [score for score in scores if score["f1"] is not None]
    rows = ((score["precision"] or 0.0, score["recall"] or 0.0, score["f1"] or 0.0) for score in occurring)
    precision, recall, f1 = (sum(column) / len(occurring) for column in zip(*rows, strict=True))
    return {"precision": precision, "recall": recall, "f1": f1}


def second_choices(probabilities: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return each image's most probable class but the answer, (N,) int64; of equally probable ones the lowest.

    If there is only one class, return the answer. probabilities: (N, classes) float. answers: (N,) integers.
    """
    others = probabilities.astype(np.float64)
    np.put_along_axis(others, answers[:, None].astype(np.intp), -1.0, axis=1)
    return others.argmax(axis=1)


def confidences(probabilities: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return the probability of each answer, (N,) float64. probabilities: (N, classes). answers: (N,) integers."""
    return np.take_along_axis(probabilities, answers[:, None].astype(np.intp), axis=1)[:, 0].astype(np.float64)


def calibration(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> tuple[list[Bin], Calibration]:
    """Return the answers in bins by probability, and how far probability and accuracy differ (calibration errors).

    confidence: (N,) float in [0, 1]. right: (N,) bool. N is at least 1. bins: number of equally wide bins.
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
    """Return the indices, (n,) int64, of up to ``most`` wrong answers, the most confident first.

    confidence: probability of each answer, (N,) float. right: (N,) bool.
    """
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
    """Return the two-sided p-value of the counts of two events, if both are equally likely, and the test's name."""
    tosses = one + other
    if tosses <= MOST_EXACT:
        tail = sum(math.comb(tosses, count) for count in range(min(one, other) + 1))
        return min(1.0, 2 * tail / 2**tosses), EXACT
    statistic = max(0, abs(one - other) - 1) ** 2 / tosses
    return math.erfc(math.sqrt(statistic / 2)), APPROXIMATE


def _share_or_none(part: float, whole: int) -> float | None:
    return part / whole if whole else None


MISTAKES = 25  # the most that the document lists
CHANGES = 1000  # the most changed answers that the document lists


class Answers(Frozen):
    """A classifier's answers for N images. labels: (N,) uint8. probabilities: (N, classes) float32, finite.

    about: network, weights and precision, as in the document.
    """

    about: EvaluatedNetwork
    labels: np.ndarray
    probabilities: np.ndarray


def build_document(
    device: Mapping[str, Any], data: Dataset, names: Sequence[str] | None, found: Answers, other: Answers | None
) -> Evaluate:
    """Return the JSON document of ``evaluate``; without labels, its field ``answers`` is None.

    data: images, and labels if any. names: of the classes. found: answers to evaluate. other: answers to compare with.
    """
    truth = data.labels
    return {
        "schema": "lenet5-inference/evaluate/1",
        "device": cast(Card | Processor, dict(device)),
        **found.about,
        "data": {"source": data.source, "split": data.split, "images": len(data.images)},
        "classes": None if names is None else [*names],
        "answers": None if truth is None else {**_summary_record(found, truth), **_details_record(found, truth)},
        "against": None if other is None else _comparison_record(found, other, truth),
    }


def _summary_record(found: Answers, truth: np.ndarray) -> records.Summary:
    """Return accuracy, top-2 accuracy, averages over classes, and calibration errors. truth: correct labels, (N,)."""
    right = found.labels == truth
    second = second_choices(found.probabilities, found.labels) == truth
    correct, top2 = int(right.sum()), int((right | second).sum())
    return {
        "correct": correct,
        "accuracy": correct / len(truth),
        "top2_correct": top2,
        "top2_accuracy": top2 / len(truth),
        "macro": macro_averages(class_scores(_confusion_matrix(found, truth))),
        "calibration": calibration(confidences(found.probabilities, found.labels), right)[1],
    }


def _details_record(found: Answers, truth: np.ndarray) -> records.Details:
    matrix = _confusion_matrix(found, truth)
    right = found.labels == truth
    confidence = confidences(found.probabilities, found.labels)
    of_truth = confidences(found.probabilities, truth)
    return {
        "classes": class_scores(matrix),
        "confusion": matrix.tolist(),
        "bins": calibration(confidence, right)[0],
        "mistakes": [
            {
                "image": index,
                "label": int(truth[index]),
                "answer": int(found.labels[index]),
                "probability": float(confidence[index]),
                "label_probability": float(of_truth[index]),
            }
            for index in worst_mistakes(confidence, right, MISTAKES).tolist()
        ],
    }


def _confusion_matrix(found: Answers, truth: np.ndarray) -> np.ndarray:
    return confusion_matrix(truth, found.labels, found.probabilities.shape[1])


def _comparison_record(found: Answers, other: Answers, truth: np.ndarray | None) -> records.OtherNetwork:
    changed = np.flatnonzero(found.labels != other.labels)
    moves = _confusion_matrix(other, found.labels)  # rows: answers of the first
    stayed = moves.diagonal()
    return {
        **other.about,
        "answers": None if truth is None else _summary_record(other, truth),
        "mcnemar": None if truth is None else mcnemar(found.labels == truth, other.labels == truth),
        "changed": len(changed),
        "changes": [
            {
                "image": index,
                "label": None if truth is None else int(truth[index]),
                "answer": int(found.labels[index]),
                "other": int(other.labels[index]),
            }
            for index in changed[:CHANGES].tolist()
        ],
        "moves": moves.tolist(),
        "classes": [
            {"answers": int(before), "other_answers": int(after), "left": int(before - same), "came": int(after - same)}
            for before, after, same in zip(moves.sum(axis=1), moves.sum(axis=0), stayed, strict=True)
        ],
    }
