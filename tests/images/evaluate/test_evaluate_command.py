"""Test ``main.py evaluate``: figures, HTML page, JSON, comparisons, and requests that it refuses."""

import json
import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.base.precision import PRECISIONS
from app.cli import main
from app.images.evaluate import results
from app.images.evaluate.results import APPROXIMATE, EXACT, MOST_EXACT, mcnemar, two_sided_p_value
from app.images.evaluate.text import _most_frequent_mistake
from app.layers import Argmax, Flatten, Linear
from app.network.definitions import LENET5
from app.network.reference import load_reference
from app.network.weights import load_weights, save_weights
from data_tools.fashion_mnist import CLASSES, open_split
from data_tools.idx import write_idx
from tests.support.networks_for_tests import FLAT, multiplied, network, random_graph, random_images
from tests.support.schemas import check_described, mistakes, printed_wide
from tests.support.shell import Refuses, listing

CPU = ["evaluate", "--device", "cpu"]
Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture
def evaluate(capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """Return a function that runs the command on the CPU with ``--json -`` and returns the document."""

    def run(*arguments: object) -> dict[str, Any]:
        assert main([*CPU, *map(str, arguments), "--json", "-"]) == 0
        out, err = capsys.readouterr()
        assert not err or err.startswith("note: ")
        found: dict[str, Any] = json.loads(out)
        assert not mistakes(found)
        return found

    return run


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """Return options that name random weights of three named classes, and images; write labels and other weights."""
    graph = random_graph(FLAT)
    save_weights(tmp_path / "own.h5", graph.parameters, network=FLAT, classes=("<one>", "two", "three"))
    images = random_images(FLAT, 50)
    write_idx(tmp_path / "images", images[:, 0])
    write_idx(tmp_path / "labels", graph.forward(images, np.float64)[1])
    save_weights(tmp_path / "other.h5", random_graph(FLAT, 1).parameters, network=FLAT)
    return ["--weights", str(tmp_path / "own.h5"), "--data", str(tmp_path / "images")]


@pytest.mark.usefixtures("first_hundred")
def test_figures_of_the_shipped_weights(evaluate: Evaluate, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    truth = open_split("test")[1]
    reference = load_reference(load_weights(), LENET5)
    assert reference is not None
    labels = reference.labels[:100]
    found = evaluate("--against", "mlp")
    answers, other = found["answers"], found["against"]
    assert found["classes"] == [*CLASSES] and found["precision"] == other["precision"] == "fp32"
    assert answers["correct"] == (labels == truth).sum() == np.trace(answers["confusion"])
    assert {one["image"] for one in answers["mistakes"]} == {*np.flatnonzero(labels != truth).tolist()}
    test = other["mcnemar"]
    assert other["network"]["name"] == "mlp"
    assert test["both_right"] + test["only_first"] == answers["correct"]
    assert test["both_right"] + test["only_second"] == other["answers"]["correct"]
    assert other["changed"] == len(other["changes"]) == 100 - np.trace(other["moves"])
    text = printed_wide(f"evaluate --device cpu --batch 40 --html {tmp_path / 'page.html'} --overwrite", capsys)
    assert f"{(labels[:40] == truth[:40]).sum()} / 40 correct" in text and "Ankle boot" in text
    assert _most_frequent_mistake([3, 9, 4], 1, None) == "2 (4)" and not _most_frequent_mistake([0, 9, 0], 1, None)
    assert "Ankle boot" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_without_labels_only_changes_are_compared(
    options: list[str], evaluate: Evaluate, tmp_path: Path, refuses: Refuses
) -> None:
    refuses([*CPU, *options], "images has no labels to judge the answers by: name them with --labels FILE, or compare")
    compare = ["--against", tmp_path / "other.h5"]
    with_labels = evaluate(*options, *compare, "--labels", tmp_path / "labels")
    for more in ([], ["--labels", "none"]):
        found = evaluate(*options, *compare, *more)
        assert found["answers"] is found["against"]["mcnemar"] is None
        assert found["against"]["moves"] == with_labels["against"]["moves"] and found["against"]["changed"]
    assert with_labels["against"]["mcnemar"]["only_first"] == found["against"]["changed"]
    assert evaluate(*options, "--against", tmp_path / "own.h5")["against"]["changed"] == 0


def test_pages_are_replaced_only_on_request(options: list[str], tmp_path: Path, refuses: Refuses) -> None:
    command = [*CPU, *options, "--labels", tmp_path / "labels", "--html", tmp_path / "page.html"]
    (tmp_path / "page.html").write_text("mine")
    before = listing(tmp_path)
    refuses(command, "page.html exists: name another --html, or replace it with --overwrite")
    refuses([*CPU, "--html", "-"], "--html -: standard output takes no such file; name a file")
    refuses([*command, "--overwrite", "--json", tmp_path / "page.html"], "--html .* is the same file as --json")
    other = tmp_path / "other.h5"
    refuses([*CPU, *options, "--against", other, "--html", other], "is the same file as")
    assert listing(tmp_path) == before
    assert main([*map(str, command), "--overwrite"]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_an_interrupted_page_is_not_written(
    options: list[str], tmp_path: Path, interrupt_writing: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(tmp_path)
    interrupt_writing()
    assert main([*CPU, *options, "--labels", str(tmp_path / "labels"), "--html", str(tmp_path / "page.html")]) == 2
    assert listing(tmp_path) == before and capsys.readouterr().out == ""


def test_bad_requests_are_refused(options: list[str], tmp_path: Path, refuses: Refuses) -> None:
    labelled = [*CPU, *options, "--labels", tmp_path / "labels"]
    refuses([*labelled, "--batch", "51"], "--batch 51 is more than the 50 images of .*images")
    refuses([*labelled, "--against", "lenet5"], "--against lenet5 has other classes: compare networks that tell the")
    save_weights(tmp_path / "names.h5", random_graph(FLAT).parameters, network=FLAT, classes=("a", "b", "c"))
    refuses([*labelled, "--against", tmp_path / "names.h5"], "names.h5 has other classes")
    save_weights(tmp_path / "huge.h5", multiplied(random_graph(FLAT), fc1=1e20, fc2=1e20).parameters, network=FLAT)
    huge = [*labelled[:3], "--weights", tmp_path / "huge.h5", *labelled[5:]]
    refuses(huge, r"the scores of \d+ images are beyond the range of fp32: choose a finer --precision")


@pytest.mark.gpu
@pytest.mark.usefixtures("first_hundred")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_precisions_agree_on_the_gpu(precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Compare each precision with fp32, and fp32 with the shipped count of correct answers."""
    arguments = ["--device", "cuda", "--precision", "fp32", "--against", precision, "--json", "-"]
    assert main(["evaluate", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    check_described(found)
    assert (found["precision"], found["against"]["precision"]) == ("fp32", precision)
    assert found["device"]["kind"] == "cuda" and found["against"]["changed"] <= 1
    assert found["answers"]["correct"] == load_weights().expected_correct[100]


@pytest.mark.usefixtures("first_hundred")
@pytest.mark.parametrize(
    ("classes", "names", "shown"),
    [(10, None, [*CLASSES]), (10, tuple("abcdefghij"), [*"abcdefghij"]), (12, None, None)],
    ids=["the data's", "the weights'", "the data have others"],
)
def test_class_names_come_from_the_weights_or_the_data(
    classes: int, names: tuple[str, ...] | None, shown: list[str] | None, evaluate: Evaluate, tmp_path: Path
) -> None:
    layers = Flatten("flatten"), Linear("fc1", outputs=classes), Argmax("argmax")
    bare = network("bare_28", (1, 28, 28), *layers)
    save_weights(tmp_path / "w.h5", random_graph(bare).parameters, network=bare, classes=names)
    assert evaluate("--weights", tmp_path / "w.h5", "--batch", "5")["classes"] == shown


# --- What it counts


@st.composite
def random_labels_and_answers(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Draw the labels and answers of some images, and the number of classes."""
    classes = draw(st.integers(1, 6))
    pairs = draw(st.lists(st.tuples(*[st.integers(0, classes - 1)] * 2), min_size=1, max_size=40))
    truth, answers = np.array(pairs, np.uint8).T
    return truth, answers, classes


@settings(max_examples=60)
@given(random_labels_and_answers())
def test_class_scores_by_exact_counting(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    truth, answers, classes = case
    pairs = [*zip(truth.tolist(), answers.tolist(), strict=True)]
    matrix = results.confusion_matrix(truth, answers, classes)
    assert matrix.tolist() == [[pairs.count((is_, answer)) for answer in range(classes)] for is_ in range(classes)]
    scores = results.class_scores(matrix)
    shares: list[tuple[Fraction, Fraction, Fraction]] = []
    for label, score in enumerate(scores):
        given = [answer for is_, answer in pairs if is_ == label]
        named = [is_ for is_, answer in pairs if answer == label]
        precision = Fraction(named.count(label), len(named)) if named else None
        recall = Fraction(given.count(label), len(given)) if given else None
        assert is_close(score["precision"], precision) and is_close(score["recall"], recall)
        one, other = precision or Fraction(0), recall or Fraction(0)
        f1 = 2 * one * other / (one + other) if one + other else Fraction(0)
        assert is_close(score["f1"], f1 if given or named else None)
        if given or named:
            shares.append((one, other, f1))
    averages = results.macro_averages(scores)
    found = (averages["precision"], averages["recall"], averages["f1"])
    assert all(
        is_close(one, sum(column) / len(shares)) for one, column in zip(found, zip(*shares, strict=True), strict=True)
    )


def is_close(found: float | None, expected: Any) -> bool:
    return found is expected is None or found == pytest.approx(float(expected), abs=1e-12)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 96), st.booleans()), min_size=1, max_size=60), st.sampled_from([1, 3, 15]))
def test_calibration_by_exact_fractions(images: list[tuple[int, bool]], bins: int) -> None:
    """Probabilities are multiples of 1/96, so that many are equal to a bound of bins; they belong to the lower bin."""
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
        assert is_close(one["confidence"], confidence) and is_close(one["accuracy"], accuracy)
        gaps.append(abs(accuracy - confidence))
        expected += gaps[-1] * Fraction(len(inside), len(images))
    assert is_close(error["expected_error"], expected) and is_close(error["greatest_error"], max(gaps))
    assert len(results.calibration(np.ones(1), np.ones(1, bool))[0]) == 15


def test_second_choices() -> None:
    """Expect the most probable class but the answer, which need not be the most probable; the first of equal ones."""
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


def test_counts_of_mcnemar() -> None:
    first = np.array([1, 1, 1, 0, 0, 0, 0, 1], bool)
    second = np.array([1, 1, 0, 1, 1, 0, 1, 1], bool)
    found = mcnemar(first, second)
    assert [*found.values()] == [3, 1, 3, 1, 2 * (1 + 4) / 16, EXACT]


@pytest.mark.parametrize("tosses", range(11))
def test_exact_p_value_by_enumeration(tosses: int) -> None:
    """Expect the share of all outcomes of ``tosses`` coin tosses that are at least as uneven."""
    heads = [sum(outcome) for outcome in product((0, 1), repeat=tosses)]
    for one in range(tosses + 1):
        uneven = sum(abs(2 * count - tosses) >= abs(2 * one - tosses) for count in heads)
        assert two_sided_p_value(one, tosses - one) == (pytest.approx(uneven / len(heads), rel=1e-15), EXACT)


def test_p_value_of_many_images_is_approximated() -> None:
    tosses = MOST_EXACT + 1
    for one in range(440, 501, 10):
        exact = min(1.0, 2 * sum(math.comb(tosses, count) for count in range(one + 1)) / 2**tosses)
        for pair in ((one, tosses - one), (tosses - one, one)):
            assert two_sided_p_value(*pair) == (pytest.approx(exact, rel=0.02), APPROXIMATE)
    assert two_sided_p_value(500, 500) == (1.0, EXACT)
    assert two_sided_p_value(0, MOST_EXACT) == (pytest.approx(2.0 ** (1 - MOST_EXACT), rel=1e-15), EXACT)
    assert two_sided_p_value(0, 100_000) == (0.0, APPROXIMATE)
    assert two_sided_p_value(50_000, 50_000) == (1.0, APPROXIMATE)
