"""Test ``main.py train``: its files, resumed trainings with the same bits, and errors that lose no results."""

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from app.cli import main
from app.cuda import device
from app.drawing.svg import format_number
from app.network.weights import load_weights, round_to_storage
from app.training import command, cpu_trainer, loop
from app.training.checkpoint import EpochResult, load_checkpoint, save_checkpoint
from app.training.cpu_trainer import dropout_mask
from app.training.settings import RECIPES
from data_tools.idx import write_idx
from tests.support.schemas import mistakes
from tests.support.shell import listing, shell
from tests.support.training_for_tests import OWN, Refused, Train, new_job, some_settings

MLP = ["--network", "mlp", *OWN]
CHECKPOINT = "mlp_trained.h5.checkpoint"


def check_failure(result: tuple[int, str, str], pattern: str) -> None:
    """Check exit code and one-line error of a training that failed after it began."""
    code, _, err = result
    assert code == 2 and re.fullmatch(rf"error: .*{pattern}.*\n", err), err


@contextmanager
def interrupt_after(epochs: int, trainer: Any = cpu_trainer.CpuTrainer) -> Iterator[None]:
    """Raise KeyboardInterrupt in the middle of epoch ``epochs`` + 1 of trainings in the block."""
    real = trainer._update_parameters

    def update(self: Any, first: Any, step: int) -> Any:
        if step == epochs * self.settings.batches_per_epoch + 1:
            raise KeyboardInterrupt
        return real(self, first, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "_update_parameters", update)
        yield


@contextmanager
def call_after_saving(action: Callable[[], object]) -> Iterator[None]:
    """Call ``action`` after each checkpoint that a training in the block saves."""
    real = command.save_checkpoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "save_checkpoint", lambda *arguments: [real(*arguments), action()])
        yield


def test_training_learns_and_writes_results(train: Train, place: Path) -> None:
    code, out, err = train(*MLP, "--epochs", "8", "--json", "log.json")
    assert (code, err) == (0, "") and out.count("\nepoch ") == 8 and "slowly" in out
    log = json.loads((place / "log.json").read_text())
    assert not mistakes(log)
    assert len(log["epochs"]) == 8 and log["settings"]["network"] == "mlp" and log["test_correct"] == {}
    best = log["best_epoch"]
    accuracies = [epoch["validation_accuracy"] for epoch in log["epochs"]]
    assert accuracies[best - 1] == max(accuracies) == 1.0 and accuracies.index(1.0) == best - 1
    assert log["epochs"][-1]["loss"] < 0.7 * log["epochs"][0]["loss"]
    weights = load_weights(place / "mlp_trained.h5")
    assert weights.network == "mlp" and weights.expected_correct == {} and f"best epoch {best}" in str(weights.recipe)
    assert "seed 1" in str(weights.recipe) and weights.sha256 == log["weights"]["sha256"]
    assert set(listing(place)) == {"images", "labels", "log.json", "mlp_trained.h5"}
    assert main(["--weights", "mlp_trained.h5", "--data", "images", "--labels", "labels", "--device", "cpu"]) == 0


@pytest.mark.parametrize(("width", "device"), [(7, "cpu"), pytest.param(37, "cuda", marks=pytest.mark.gpu)])
def test_other_widths_of_mlp_are_trained(width: int, device: str, train: Train, place: Path) -> None:
    """``mlp_7`` is mlp with seven hidden units; the weights file keeps the name."""
    name = f"mlp_{width}"
    code, out, err = train("--network", name, *OWN, "--epochs", "8", "--device", device)
    assert (code, err) == (0, "") and out.count("\nepoch ") == 8
    assert (f"training {name} on the CPU with NumPy, slowly" in out) == ("slowly" in out) == (device == "cpu")
    weights = load_weights(place / f"{name}_trained.h5")
    assert weights.network == name and weights.arrays["fc1"].shape == (784, width) and weights.arrays["fc2_bias"].any()
    assert set(listing(place)) == {"images", "labels", f"{name}_trained.h5"}
    own = ["--data", "images", "--labels", "labels", "--device", device]
    assert main(["--weights", f"{name}_trained.h5", *own]) == 0


def test_only_json_on_standard_output(train: Train) -> None:
    code, out, err = train(*MLP, "--epochs", "1", "--json", "-")
    assert (code, err) == (0, "") and json.loads(out)["best_epoch"] == 1


@pytest.mark.parametrize("network", RECIPES)
def test_every_recipe_trains_its_network(network: str, train: Train, place: Path) -> None:
    code, out, err = train("--network", network, *OWN, "--images", "20", "--validation", "4", "--epochs", "1")
    assert (code, err) == (0, "") and f"wrote {network}_trained.h5" in out
    weights = load_weights(place / f"{network}_trained.h5")
    assert {name for name in weights.arrays if "_bias" in name} == {f"{name}_bias" for name in RECIPES[network].biases}
    assert weights.storage == ("float16" if network in ("fa19", "k7", "minidnn86") else "float32")


def test_storage_can_be_chosen(train: Train, place: Path) -> None:
    for storage in ("float32", "float16"):
        assert train(*MLP, "--epochs", "1", "--storage", storage, "--out", f"{storage}.h5")[0] == 0
    wide, narrow = (load_weights(place / f"{storage}.h5") for storage in ("float32", "float16"))
    assert narrow.storage == "float16" and "stored as float16" in str(narrow.recipe)
    np.testing.assert_equal(narrow.arrays, round_to_storage(wide.arrays, "float16"))


@pytest.mark.fashion_mnist
def test_weights_trained_on_fashion_mnist_promise_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--network", "mlp", "--images", "1200", "--epochs", "2", "--batch-size", "50"]
    done = shell("train", *options, cwd=tmp_path)
    assert (done.returncode, done.stderr, list(listing(tmp_path))) == (0, "", ["mlp_trained.h5"])
    weights = load_weights(tmp_path / "mlp_trained.h5")
    assert set(weights.expected_correct) == {100, 1000, 5000, 10_000} and weights.expected_correct[10_000] > 5000
    assert weights.classes is not None
    assert main(["--weights", str(tmp_path / "mlp_trained.h5"), "--device", "cpu", "--batch", "1000"]) == 0
    assert "as promised" in capsys.readouterr().out


def test_learning_curve(train: Train, place: Path) -> None:
    assert train(*MLP, "--epochs", "2", "--plot", "plots", "--json", "log.json")[0] == 0
    chart = (place / "plots" / "learning_curve_mlp.svg").read_text("utf-8")
    log = json.loads((place / "log.json").read_text("utf-8"))
    assert f"best epoch: {log['best_epoch']}." in chart
    for epoch, result in enumerate(log["epochs"], 1):
        assert f"<title>validation, {epoch}: {format_number(result['validation_loss'])}</title>" in chart


@pytest.mark.parametrize(
    "options",
    [
        "--network mlp --optimiser adamw --rate 0.01 --dropout fc1=0.2,fc2=0.5 --shift 2 --l2 0.01",
        "--network mlp --workers 2",
        "--network lenet5 --images 40",
        pytest.param("--network lenet5 --images 40 --device cuda", marks=pytest.mark.gpu),
        pytest.param("--network minidnn86 --images 40 --device cuda", marks=pytest.mark.gpu),
    ],
)
def test_a_resumed_training_gives_the_same_bits(options: str, train: Train, place: Path) -> None:
    """The checkpoint stores the number of workers, which --resume need not repeat."""
    words, device = [*OWN, *options.split(), "--epochs", "4"], "cpu"
    trainer: Any = cpu_trainer.CpuTrainer
    if "cuda" in options:
        from app.training.gpu.trainer import GpuTrainer

        device, trainer = "cuda", GpuTrainer
    assert train(*words, "--out", "whole.h5")[0] == 0
    with interrupt_after(2, trainer):
        check_failure(train(*words, "--out", "parts.h5"), "interrupted.*continue with --resume parts.h5.checkpoint")
    assert not (place / "parts.h5").exists()
    code, out, _ = train("--resume", "parts.h5.checkpoint", *OWN[:4], "--device", device)
    assert code == 0 and "epoch 3/4" in out and "epoch 2/4" not in out and "note:" not in out
    assert (place / "whole.h5").read_bytes() == (place / "parts.h5").read_bytes()
    assert not list(place.glob("*.checkpoint"))


def test_resuming_on_another_device_or_with_fewer_workers_is_noted(train: Train, place: Path) -> None:
    """The training continues, and notes say that bits may differ."""
    with interrupt_after(1):
        assert train(*MLP, "--epochs", "2")[0] == 2
    read = load_checkpoint(place / CHECKPOINT)
    progress = read.progress
    assert progress.trained_on == "the CPU with NumPy"
    save_checkpoint(place / CHECKPOINT, read.settings, replace(progress, trained_on="Some Card", workers=2))
    code, out, err = train("--resume", CHECKPOINT, *OWN[:4], "--workers", "1")
    assert (code, err) == (0, "") and f"note: {CHECKPOINT} comes from Some Card: on another processor" in out
    assert f"note: {CHECKPOINT} comes from 2 workers; with 1 bits may differ" in out


def test_seeds_change_weights_and_threads_do_not(train: Train, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two trainings differ only in the number of threads, the third one in the seed."""
    for name, seed, cores in (("a", "1", 1), ("b", "1", 3), ("c", "2", 1)):
        monkeypatch.setattr(cpu_trainer, "core_count", lambda cores=cores: cores)
        assert train(*MLP, "--batch-size", "40", "--epochs", "2", "--seed", seed, "--out", f"{name}.h5")[0] == 0
    first, second, third = ((place / f"{name}.h5").read_bytes() for name in "abc")
    assert first == second != third


def test_settings_name_shifts_and_flips_only_where_there_are_any() -> None:
    for shift, flip in ((2, True), (0, False)):
        said = some_settings(shift=shift, flip=flip).describe()
        assert ("shifts up to 2 px" in said, "horizontal flips" in said, "shifts" in said) == (flip, flip, flip)


def test_dropout_depends_only_on_image_layer_and_epoch() -> None:
    settings = some_settings(dropout=(("fc1", 0.25), ("fc2", 0.5)))
    items = np.array([5, 17, 3])
    mask = dropout_mask(settings, "fc1", (3, 1000), items, 2)
    assert mask is not None and set(np.unique(mask)) == {0, np.float32(1 / 0.75)}
    assert mask.mean() == pytest.approx(1, abs=0.05) and dropout_mask(settings, "fc3", (3, 9), items, 2) is None
    alone = dropout_mask(settings, "fc1", (1, 1000), items[1:2], 2)
    assert alone is not None and np.array_equal(alone[0], mask[1])
    for layer, epoch in (("fc1", 3), ("fc2", 2)):
        other = dropout_mask(settings, layer, (3, 1000), items, epoch)
        assert other is not None and not np.array_equal(other > 0, mask > 0)


def test_the_split_covers_all_images_once() -> None:
    settings = some_settings(images=103, validation=20, batch=16)
    training, held_out = loop.split_validation(settings)
    assert sorted([*training, *held_out]) == list(range(103)) and len(held_out) == 20
    assert settings.batches_per_epoch == 6
    assert not np.array_equal(held_out, loop.split_validation(replace(settings, seed=2))[1])


def test_a_missing_gpu_is_reported(train: Train, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    """``--device cuda`` is refused; ``auto`` trains on the CPU and says why."""
    monkeypatch.setattr(device, "why_no_gpu", lambda *_: "there is none")
    refused([*MLP, "--device", "cuda"], "--device cuda: there is none; use --device cpu, or auto")
    code, out, err = train(*MLP, "--device", "auto", "--epochs", "1")
    assert (code, err) == (0, "") and "on the CPU with NumPy, slowly (there is none): " in out


@pytest.mark.parametrize("options", [MLP, [*MLP, "--overwrite"]], ids=["", "overwrite"])
def test_a_new_training_keeps_an_existing_checkpoint(options: list[str], refused: Refused, place: Path) -> None:
    (place / CHECKPOINT).write_text("precious")
    refused(options, f"{CHECKPOINT} stores an unfinished training: continue with --resume {CHECKPOINT}, or remove")


@pytest.mark.parametrize("options", ["--rate 1000", "--rate 1000 --workers 2"])
def test_a_loss_far_above_guessing_is_an_error(options: str, train: Train, place: Path) -> None:
    """The training ends after the epoch, although the loss is finite."""
    wrong = "the loss became [0-9.e+]+ in epoch 1 .guessing gives 2.30., with .*%.*: train again with a smaller"
    check_failure(train(*MLP, *options.split()), wrong)
    assert set(listing(place)) == {"images", "labels"}


def test_one_bad_figure_is_no_divergence() -> None:
    """Neither a large loss with a fair accuracy nor a low accuracy with a moderate loss is divergence."""
    labels, few = np.arange(100) % 10, np.zeros(100, np.int64)
    bad = EpochResult(loss=30, accuracy=0.1, validation_loss=30, validation_accuracy=0.1, seconds=1)
    fine = [replace(bad, accuracy=0.9), replace(bad, validation_accuracy=0.2), replace(bad, loss=9, validation_loss=9)]
    before = new_job(some_settings()).progress
    for result in fine:
        loop.check_beats_guessing(replace(before, history=(result,)), labels, 10)
    with pytest.raises(loop.DivergedError, match=r"30 in epoch 1 .* 10.0% correct"):
        loop.check_beats_guessing(replace(before, history=(bad,)), labels, 10)
    with pytest.raises(loop.DivergedError):
        loop.check_beats_guessing(
            replace(before, history=(replace(bad, accuracy=0.9, validation_accuracy=1.0),)), few, 10
        )


@pytest.mark.parametrize("options", ["", "--workers 2", pytest.param("--device cuda", marks=pytest.mark.gpu)])
def test_an_infinite_loss_is_an_error(options: str, train: Train, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of the last good epoch is kept, and workers end at once."""
    monkeypatch.setattr(loop, "FAR", math.inf)
    many = "--batch-size 60 --rate 1000 --weight-decay 1000 --epochs 20"
    wrong = (
        f"the .*loss became (nan|inf).* epoch [0-9]+.*: remove {CHECKPOINT}, which stores the last complete epoch, "
        "and train again with a smaller --rate"
    )
    begun = time.monotonic()
    check_failure(train(*MLP, *many.split(), *options.split()), wrong)
    assert "workers" not in options or time.monotonic() - begun < 8
    assert load_checkpoint(place / CHECKPOINT).settings.network == "mlp"  # loading refuses NaN and infinity
    assert not (place / "mlp_trained.h5").exists()


def test_unsuitable_images_are_refused(refused: Refused, place: Path) -> None:
    write_idx(place / "small", np.zeros((60, 8, 9), np.uint8))
    write_idx(place / "coloured", np.zeros((60, 3, 28, 28), np.uint8))
    write_idx(place / "one", np.zeros((1, 28, 28), np.uint8))
    write_idx(place / "one_label", np.zeros(1, np.uint8))
    write_idx(place / "many", np.full(60, 10, np.uint8))
    with h5py.File(place / "floats", "w") as file:
        file["x"], file["y"] = np.full((3, 28, 28, 1), 0.1234), np.eye(10)[:3]
    cases = {
        "--data small --labels labels": r"small has images of shape \(1, 8, 9\).*network mlp reads .*: resize",
        "--data coloured --labels labels": "coloured has images of shape .*: name images with as many channels",
        "--data images --labels many": "has label 10, network mlp has classes 0 to 9",
        "--data images": "images has no labels to learn from: name them with --labels FILE",
        "--data images --labels small": "small",
        "--data floats": "floats has float(32|64) images: store them as bytes",
        "--data one --labels one_label": "one has 1 image: train needs at least two",
        "--data images --labels labels --dropout fc1=0.1,fc1=0.3": "fc1=0.1,fc1=0.3 names layer fc1 twice",
    }
    for options, wrong in cases.items():
        refused(f"--network mlp {options}", wrong)
