"""Checkpoints of a training: read as written, and refused in one line when damaged, foreign or of other settings."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from app.errors import UserError
from app.network.weights import load_weights
from app.training.checkpoint import load_checkpoint, save_checkpoint
from app.training.progress import EpochResult
from data_tools.idx import write_idx
from tests.support.shell import check_error, listing
from tests.support.training_for_tests import OWN, Train, some_settings, unfinished
from tests.training.test_train_command import MLP, interrupted_after


def test_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    unfinished(tmp_path / "c")
    read = load_checkpoint(tmp_path / "c")
    settings = read.settings
    assert settings == some_settings()
    progress = read.progress
    assert progress.history == (EpochResult(1.0, 0.5, 1.0, 0.5, 1.0),) and progress.best_epoch == 1
    before = (tmp_path / "c").read_bytes()
    save_checkpoint(tmp_path / "c", settings, progress)
    assert (tmp_path / "c").read_bytes() == before


def test_a_checkpoint_is_no_weights(tmp_path: Path) -> None:
    unfinished(tmp_path / "c")
    with pytest.raises(UserError, match=r"c: it is a training's checkpoint, not weights; train --resume"):
        load_weights(tmp_path / "c")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (
            "--network lenet5",
            "--network lenet5 differs from c.checkpoint, which was begun with --network mlp: leave it out",
        ),
        ("--epochs 9", "--epochs 9 differs from c.checkpoint, which was begun with --epochs 40"),
        ("--seed 2", "--seed 2 differs"),
        ("--no-flip", "--no-flip differs from c.checkpoint, which was begun with --flip: leave it out"),
        ("--dropout fc2=0.5,fc1=0.25", "--dropout fc1=0.25,fc2=0.5 differs .* begun with --dropout none: leave"),
        ("--images 30", "--images 30 differs"),
        ("--data images --labels labels", "is not what c.checkpoint was trained on: name those images with --data"),
    ],
)
def test_other_settings_than_it_was_begun_with(options: str, wrong: str, train: Train, place: Path) -> None:
    unfinished(place / "c.checkpoint")
    before = listing(place)
    check_error(*train("--resume", "c.checkpoint", *options.split()), wrong)
    assert listing(place) == before


def test_fewer_images_than_it_was_begun_with(train: Train, place: Path) -> None:
    """Another number cannot be asked for then."""
    unfinished(place / "c.checkpoint")
    write_idx(place / "few", np.zeros((30, 28, 28), np.uint8))
    write_idx(place / "few_labels", np.zeros(30, np.uint8))
    own = ["--data", "few", "--labels", "few_labels"]
    check_error(*train("--resume", "c.checkpoint", *own), "few is not what c.checkpoint was trained on: name those")


def test_the_order_of_dropouts_does_not_matter(train: Train, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the bits nor for going on."""
    dropouts = ["fc1=0.2,fc2=0.5", "fc2=0.5,fc1=0.2"]
    for output, dropout in zip(("a.h5", "b.h5"), dropouts, strict=True):
        assert train(*MLP, "--epochs", "2", "--output", output, "--dropout", dropout)[0] == 0
    assert (place / "a.h5").read_bytes() == (place / "b.h5").read_bytes()
    with interrupted_after(1):
        assert train(*MLP, "--epochs", "2", "--output", "c.h5", "--dropout", dropouts[0])[0] == 2
    assert train("--resume", "c.h5.checkpoint", *OWN[:4], "--dropout", dropouts[1], "--flip")[0] == 0


def flip(path: Path, name: str) -> None:
    with h5py.File(path, "r+") as file:
        file[name][(0,) * file[name].ndim] += 1


def set_attribute(path: Path, name: str, value: object) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs[name] = value


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def drop(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["velocity_fc1"]


@pytest.mark.parametrize(
    ("harm", "wrong"),
    [
        (lambda path: flip(path, "velocity_fc1"), "c.checkpoint is a damaged checkpoint"),
        (lambda path: flip(path, "history"), "c.checkpoint is a damaged checkpoint"),
        (drop, "c.checkpoint is a damaged checkpoint"),
        (lambda path: unfinished(path, workers=0), "c.checkpoint is a damaged checkpoint"),
        (lambda path: set_attribute(path, "head", np.bytes_(b"{}")), "c.checkpoint is a damaged checkpoint"),
        (lambda path: set_attribute(path, "schema", 99), "c.checkpoint is a checkpoint of another version"),
        (lambda path: set_attribute(path, "kind", np.bytes_(b"x")), "c.checkpoint is not a checkpoint of a training"),
        (truncate, "c.checkpoint"),
        (lambda path: path.write_bytes(b"no HDF5"), "c.checkpoint is not an HDF5 file"),
    ],
)
def test_corrupt_checkpoints(harm: Callable[[Path], object], wrong: str, train: Train, place: Path) -> None:
    unfinished(place / "c.checkpoint")
    harm(place / "c.checkpoint")
    check_error(*train("--resume", "c.checkpoint", *OWN[:4]), wrong)


def test_weights_are_no_checkpoint(train: Train) -> None:
    bundled = str(Path(__file__).parents[2] / "weights" / "lenet5_fashion.h5")
    check_error(*train("--resume", bundled), "lenet5_fashion.h5 is not a checkpoint of a training")
