"""Test the check in the report: its two verdicts, differing labels, class names, and weights without a checksum."""

from dataclasses import replace

import numpy as np
import pytest

from app.main_job.report import SHOWN_DIFFERENCES, as_text
from app.network.verdicts import compare_labels, judge_answers
from data_tools.fashion_mnist import CLASSES
from tests.test_report import AGREED, BATCH, CPU, DATA, LABELS, STORED, report, wide


def test_differing_labels_are_listed() -> None:
    margins = np.ones(BATCH)
    margins[0] = 0.0
    other = replace(STORED, labels=(LABELS + 1) % 10, margins=margins)
    told = report(CPU, judge_answers(LABELS, LABELS, None, compare_labels(LABELS, other, "stored float64 reference")))
    text = as_text(told)
    assert "agreement  FAILED: 49 of 50 labels differ" in text and f"and {BATCH - SHOWN_DIFFERENCES} more" in text
    assert text.count("(WRONG)") == SHOWN_DIFFERENCES - 1 and text.count("(near-tie)") == 1
    first = {"index": 0, "label": 0, "reference": 1, "margin": 0.0, "excused": True}
    assert len(told["agreement"]["differences"]) == BATCH and told["agreement"]["differences"][0] == first
    assert (told["passed"], told["agreement"]["passed"], told["accuracy"]["passed"]) == (False, False, None)


@pytest.mark.parametrize(
    ("truth", "expected", "least", "lines"),
    [
        (LABELS, BATCH, None, ["answers    PASSED: 50 correct as promised"]),
        (LABELS, None, 0.9, ["answers    PASSED: 100.00% is at least the 90.00% asked for"]),
        (LABELS, None, None, ["answers    not judged: nothing is promised for these images, and no --min-accuracy"]),
        ((LABELS + 1) % 10, None, None, ["answers    WARNING: near chance, which is 10.0%; likely causes: fc1's rows"]),
        (
            (LABELS + 1) % 10,
            None,
            0.9,
            ["answers    FAILED: 0.00% is less than the 90.00% asked for", "answers    WARNING: near chance"],
        ),
        (None, None, None, ["answers    not judged: the images have no labels"]),
    ],
)
def test_the_two_verdicts(
    truth: np.ndarray | None, expected: int | None, least: float | None, lines: list[str]
) -> None:
    """One verdict is on the model's answers, the other on their agreement with the reference."""
    accuracy = judge_answers(LABELS, truth, expected, AGREED, least=least)
    told = report(CPU, accuracy)
    found = wide(told).split("\n\n")[1].splitlines()
    correct = accuracy.answers.correct
    counted = "unlabelled" if correct is None else f"{correct} / {BATCH} correct = {correct / BATCH:.2%}"
    assert found[0] == f"Accuracy: {counted}" and (correct is None) is (truth is None)
    for line, start in zip(found[1:], [*lines, "agreement  PASSED: all 50 labels equal the stored"], strict=True):
        assert line.startswith(f"  {start}")
    assert told["passed"] is accuracy.passed is ("FAILED" not in found[1]) and told["agreement"]["passed"]
    assert (told["accuracy"]["least"], told["accuracy"]["expected"]) == (least, expected)


def test_weights_without_a_checksum_are_mentioned() -> None:
    for vouched in (True, False):
        made = report(CPU)
        made["weights"]["vouched"] = vouched
        assert ("no checksum in it says that it is whole" in wide(made)) is not vouched


def test_class_names() -> None:
    assert report(CPU)["first_labels"] == list(CLASSES[:6])
    assert report(CPU, data=replace(DATA, classes=None))["first_labels"] == ["0", "1", "2", "3", "4", "5"]
