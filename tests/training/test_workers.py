"""``main.py train --workers N``: as one process within rounding; numbers that cannot be."""

import errno
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from app.network.weights import load_weights
from tests.support.shell import check_error, listing
from tests.support.training_for_tests import Train
from tests.training.test_train_command import MLP, check_failure

# --- what comes out


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (2, ["--l2", "0.01", "--dropout", "fc1=0.2", "--shift", "2", "--epochs", "2"]),
        # Of 52 images, the last batch has 2: one of the three has none.
        (3, ["--optimiser", "adamw", "--rate", "0.01", "--batch", "25", "--epochs", "2"]),
    ],
)
def test_as_one_process_within_rounding(count: int, options: list[str], train: Train, place: Path) -> None:
    assert train(*MLP, *options, "--output", "one.h5")[0] == 0
    code, out, err = train(*MLP, *options, "--workers", str(count), "--output", "more.h5")
    assert (code, err) == (0, "") and out.count("\nepoch ") == 2 and out.count("wrote ") == 1
    with h5py.File(place / "one.h5") as one, h5py.File(place / "more.h5") as more:
        for name, array in one.items():
            np.testing.assert_allclose(more[name][()], array[()], rtol=1e-4, atol=1e-5)
    assert f", {count} workers; best epoch" in str(load_weights(place / "more.h5").recipe)
    assert set(listing(place)) == {"images", "labels", "one.h5", "more.h5"}


# --- mistakes


@pytest.mark.parametrize(
    ("count", "wrong"),
    [
        ("0", "argument --workers: 0 is not between 1 and"),
        ("two", "argument --workers: 'two' is not a whole number"),
        ("17", "--workers 17 is more than the 16 images of a batch: use fewer"),
    ],
)
def test_numbers_of_workers(count: str, wrong: str, train: Train, place: Path) -> None:
    before = listing(place)
    check_error(*train(*MLP, "--workers", count), wrong)
    assert listing(place) == before


def test_more_than_there_are_images(train: Train) -> None:
    check_error(
        *train(*MLP, "--batch", "1000", "--workers", "53"), "--workers 53 is more than the 52 images of a batch"
    )


def test_no_more_processes(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(get_context("spawn").Process, "start", start)
    wrong = r"cannot start 2 workers \(Resource temporarily unavailable\): use fewer --workers"
    check_failure(train(*MLP, "--workers", "2"), wrong)
