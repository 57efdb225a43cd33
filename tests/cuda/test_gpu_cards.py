"""Test ``--device cuda:N`` and ``Classifier(device="cuda:N")`` on the machine's GPUs."""

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
def last_gpu() -> int:
    """Return the number of the last GPU, which is not the current one; skip the test with a single GPU."""
    if runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    return runtime.getDeviceCount() - 1


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_good_files(tmp_path)
    return tmp_path


def report_device(place: Path, *options: str) -> Any:
    files = ("--data", "images", "--labels", "labels", "--weights", "weights.h5")
    done = shell(*options, *files, "--json", "-", cwd=place)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)["device"]


def test_all_gpus_are_visible() -> None:
    assert len(visible_cards()) == runtime.getDeviceCount()


@pytest.mark.parametrize("command", [["--repeat", "2"], ["evaluate"]])
def test_the_report_names_the_gpu(command: list[str], place: Path) -> None:
    for number in {0, runtime.getDeviceCount() - 1}:
        device = report_device(place, *command, "--device", f"cuda:{number}")
        assert (device["number"], device["bus"]) == (number, runtime.deviceGetPCIBusId(number))


def test_numbers_count_visible_gpus(last_gpu: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = runtime.deviceGetPCIBusId(last_gpu)
    monkeypatch.setenv(VARIABLE, visible_cards()[last_gpu].visible)
    device = report_device(place, "--repeat", "2", "--device", "cuda:0")
    assert (device["number"], device["bus"]) == (0, bus)


def test_a_missing_gpu_is_an_error(tmp_path: Path) -> None:
    count = runtime.getDeviceCount()
    done = shell("--device", f"cuda:{count}", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and f"error: --device cuda:{count}: there " in done.stderr
    with pytest.raises(ValueError, match=f"cuda:{count}: there .*use --device cpu"):
        Classifier(device=f"cuda:{count}")


def test_a_classifier_on_another_gpu(last_gpu: int) -> None:
    """Host images and that GPU's images give the same bits in every thread; the current GPU stays current."""
    images = random_images(LENET5, 1000)
    with cupy.cuda.Device(last_gpu):
        on_card = cupy.asarray(images)
    with Classifier(device="cuda:0") as first, Classifier(device=f"cuda:{last_gpu}") as classifier:
        labels, logits, probabilities = first(images), first.logits, first.probabilities

        def check_results(given: Any, **options: Any) -> None:
            found = classifier(given, **options)
            scores: Any = classifier.logits
            shares: Any = classifier.probabilities
            if options:
                assert {array.device.id for array in (found, scores, shares)} == {last_gpu}
            with cupy.cuda.Device(last_gpu):  # its current stream computes them
                found, scores, shares = map(cupy.asnumpy, (found, scores, shares))
            np.testing.assert_array_equal(found, labels)
            np.testing.assert_array_equal(scores, logits)
            np.testing.assert_allclose(shares, probabilities, rtol=1e-6)

        with ThreadPoolExecutor(1) as pool:
            for given in (images, on_card):
                for options in ({}, {"on_card": True}):
                    check_results(given, **options)
                    pool.submit(check_results, given, **options).result()
        with pytest.raises(ValueError, match=f"lie on GPU {last_gpu}, the classifier on GPU 0: copy them there"):
            first(on_card)
        assert classifier.device == f"cuda:{last_gpu}" and classifier.describe()["number"] == last_gpu
        assert runtime.getDevice() == 0
