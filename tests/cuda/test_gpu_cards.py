"""``--device cuda:N`` and ``Classifier(device="cuda:N")`` on the cards that there are, also where there are several."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
import cupy
from cupy.cuda import runtime

from app.cuda.cards import VARIABLE, visible_cards
from app.engine.classifier import Classifier
from app.network.definitions import LENET5
from tests.support.networks_for_tests import random_images
from tests.support.shell import shell, write_good_files

pytestmark = pytest.mark.gpu


@pytest.fixture
def second() -> int:
    """The number of the last card, which is not the current one."""
    if runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    return runtime.getDeviceCount() - 1


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_good_files(tmp_path)
    return tmp_path


def reported(place: Path, *options: str) -> Any:
    files = ("--data", "images", "--labels", "labels", "--weights", "weights.h5")
    done = shell(*options, *files, "--json", "-", cwd=place)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)["device"]


def test_all_cards_are_seen() -> None:
    assert len(visible_cards()) == runtime.getDeviceCount()


@pytest.mark.parametrize("command", [["--repeat", "2"], ["evaluate"]])
def test_the_report_says_which_card(command: list[str], place: Path) -> None:
    for number in {0, runtime.getDeviceCount() - 1}:
        device = reported(place, *command, "--device", f"cuda:{number}")
        assert (device["number"], device["bus"]) == (number, runtime.deviceGetPCIBusId(number))


def test_numbers_count_what_is_visible(second: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = runtime.deviceGetPCIBusId(second)
    monkeypatch.setenv(VARIABLE, visible_cards()[second].visible)
    device = reported(place, "--repeat", "2", "--device", "cuda:0")
    assert (device["number"], device["bus"]) == (0, bus)


def test_a_card_that_is_not_there(tmp_path: Path) -> None:
    count = runtime.getDeviceCount()
    done = shell("--device", f"cuda:{count}", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and f"error: --device cuda:{count}: there " in done.stderr
    with pytest.raises(ValueError, match=f"cuda:{count}: there .*use --device cpu"):
        Classifier(device=f"cuda:{count}")


def test_a_classifier_on_another_card_than_the_current_one(second: int) -> None:
    """The same bits from any thread, for images on the host and on that card; the current card stays current."""
    images = random_images(LENET5, 1000)
    with cupy.cuda.Device(second):
        on_card = cupy.asarray(images)
    with Classifier(device="cuda:0") as first, Classifier(device=f"cuda:{second}") as classifier:
        labels, logits, probabilities = first(images), first.logits, first.probabilities

        def check(given: Any, **options: Any) -> None:
            found = classifier(given, **options)
            scores: Any = classifier.logits
            shares: Any = classifier.probabilities
            if options:
                assert {array.device.id for array in (found, scores, shares)} == {second}
            with cupy.cuda.Device(second):  # whose current stream computes them
                found, scores, shares = map(cupy.asnumpy, (found, scores, shares))
            np.testing.assert_array_equal(found, labels)
            np.testing.assert_array_equal(scores, logits)
            np.testing.assert_allclose(shares, probabilities, rtol=1e-6)

        with ThreadPoolExecutor(1) as pool:
            for given in (images, on_card):
                for options in ({}, {"on_card": True}):
                    check(given, **options)
                    pool.submit(check, given, **options).result()
        with pytest.raises(ValueError, match=f"lie on GPU {second}, the classifier on GPU 0: copy them there"):
            first(on_card)
        assert classifier.device == f"cuda:{second}" and classifier.describe()["number"] == second
        assert runtime.getDevice() == 0
