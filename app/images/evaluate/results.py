"""Build the JSON document of ``evaluate`` from a classifier's answers (docs/evaluate.md describes it)."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from app.base.frozen import Frozen
from app.images.evaluate import metrics
from app.records import evaluate as records
from app.records.evaluate import Evaluate, Subject
from app.records.parts import Card, Processor
from data_tools.dataset import Dataset

MISTAKES = 25
CHANGES = 1000  # the most that the document lists


class Answers(Frozen):
    """A classifier's answers for N images. labels: (N,) uint8. probabilities: (N, classes) float32, finite.

    about: the document's record of the network, its weights and the precision.
    """

    about: Subject
    labels: np.ndarray
    probabilities: np.ndarray


def build_document(
    device: Mapping[str, Any], data: Dataset, names: Sequence[str] | None, found: Answers, other: Answers | None
) -> Evaluate:
    """Return the document. data: images, and labels if any. names: of the classes. other: answers to compare with.

    Without labels, ``answers`` is None.
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
    """Return accuracy, top-2 accuracy, macro averages over the classes, and calibration errors of the answers."""
    right = found.labels == truth
    second = metrics.second_choices(found.probabilities, found.labels) == truth
    correct, top2 = int(right.sum()), int((right | second).sum())
    return {
        "correct": correct,
        "accuracy": correct / len(truth),
        "top2_correct": top2,
        "top2_accuracy": top2 / len(truth),
        "macro": metrics.macro_averages(metrics.class_scores(_confusion_matrix(found, truth))),
        "calibration": metrics.calibration(metrics.confidences(found.probabilities, found.labels), right)[1],
    }


def _details_record(found: Answers, truth: np.ndarray) -> records.Details:
    matrix = _confusion_matrix(found, truth)
    right = found.labels == truth
    confidence = metrics.confidences(found.probabilities, found.labels)
    of_truth = metrics.confidences(found.probabilities, truth)
    return {
        "classes": metrics.class_scores(matrix),
        "confusion": matrix.tolist(),
        "bins": metrics.calibration(confidence, right)[0],
        "mistakes": [
            {
                "image": index,
                "label": int(truth[index]),
                "answer": int(found.labels[index]),
                "probability": float(confidence[index]),
                "label_probability": float(of_truth[index]),
            }
            for index in metrics.worst_mistakes(confidence, right, MISTAKES).tolist()
        ],
    }


def _confusion_matrix(found: Answers, truth: np.ndarray) -> np.ndarray:
    return metrics.confusion_matrix(truth, found.labels, found.probabilities.shape[1])


def _comparison_record(found: Answers, other: Answers, truth: np.ndarray | None) -> records.Against:
    changed = np.flatnonzero(found.labels != other.labels)
    moves = _confusion_matrix(other, found.labels)  # rows: answers of the first
    stayed = moves.diagonal()
    return {
        **other.about,
        "answers": None if truth is None else _summary_record(other, truth),
        "mcnemar": None if truth is None else metrics.mcnemar(found.labels == truth, other.labels == truth),
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
