"""Test checkpoints: they are read as written; damaged, foreign or mismatched ones are refused in one line."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.commands.parsers import load_parser
from app.files.checks import BadValueError
from app.files.hdf5 import content_hash
from app.files.shipped import weights_path
from app.network.definitions import MLP as MLP_NETWORK
from app.network.graph import find_network
from app.network.toml import network_toml
from app.network.weights import load_weights
from app.training.checkpoint import EpochResult, header_json, load_checkpoint, parse_header, save_checkpoint
from app.training.settings import SETTINGS
from data_tools.idx import write_idx
from tests.fuzz.mutate import garbled
from tests.support.shell import user_error
from tests.support.training_for_tests import OWN, Refused, Train, some_settings, unfinished
from tests.training.test_train_command import MLP, interrupt_after


def test_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    unfinished(tmp_path / "c")
    read, before = load_checkpoint(tmp_path / "c"), (tmp_path / "c").read_bytes()
    assert read.settings == some_settings() and read.progress.best_epoch == 1
    assert read.progress.history == (EpochResult(1.0, 0.5, 1.0, 0.5, 1.0),)
    save_checkpoint(tmp_path / "c", read.settings, read.progress)
    assert (tmp_path / "c").read_bytes() == before
    for rehashed in (False, True):  # without a change, the file stays valid
        change_checkpoint(tmp_path / "c", lambda *_: None, rehashed=rehashed)
        load_checkpoint(tmp_path / "c")
    with pytest.raises(UserError, match=r"c: it is a training's checkpoint, not weights; train --resume"):
        load_weights(tmp_path / "c")


OTHERS = {
    "--network lenet5": "--network lenet5 differs from c.checkpoint, which was started with --network mlp: leave it",
    "--epochs 9": "--epochs 9 differs from c.checkpoint, which was started with --epochs 40",
    "--seed 2": "--seed 2 differs",
    "--no-flip": "--no-flip differs from c.checkpoint, which was started with --flip: leave it out",
    "--dropout fc2=0.5,fc1=0.25": "--dropout fc1=0.25,fc2=0.5 differs .* started with --dropout none: leave",
    "--data few --labels few_labels": "few does not contain the images of c.checkpoint: name those",
    "--data images --labels labels": "does not contain the images of c.checkpoint: name those with --data",
}


@pytest.mark.parametrize("options", OTHERS)
def test_other_settings_are_refused(options: str, refused: Refused, place: Path) -> None:
    unfinished(place / "c.checkpoint")
    write_idx(place / "few", np.zeros((30, 28, 28), np.uint8))
    write_idx(place / "few_labels", np.zeros(30, np.uint8))
    refused(f"--resume c.checkpoint {options}", OTHERS[options])


def test_the_order_of_dropouts_does_not_matter(train: Train, place: Path) -> None:
    """The weights have the same bits, and a training resumes with the options in another order."""
    dropouts = ["fc1=0.2,fc2=0.5", "fc2=0.5,fc1=0.2"]
    for output, dropout in zip(("a.h5", "b.h5"), dropouts, strict=True):
        assert train(*MLP, "--epochs", "2", "--out", output, "--dropout", dropout)[0] == 0
    assert (place / "a.h5").read_bytes() == (place / "b.h5").read_bytes()
    with interrupt_after(1):
        assert train(*MLP, "--epochs", "2", "--out", "c.h5", "--dropout", dropouts[0])[0] == 2
    assert train("--resume", "c.h5.checkpoint", *OWN[:4], "--dropout", dropouts[1], "--flip")[0] == 0


Change = Callable[[dict[str, Any], dict[str, Any]], object]


def change_checkpoint(path: Path, change: Change, *, rehashed: bool = True) -> None:
    """Change the header and the arrays of a checkpoint by ``change``; update the hash only if ``rehashed``."""
    with h5py.File(path, "r+") as file:
        head, arrays = json.loads(file.attrs["head"]), {name: file[name][...] for name in file}
        change(head, arrays)
        file.clear()
        for name, array in arrays.items():
            file[name] = array
        text = json.dumps(head)
        file.attrs["head"] = np.bytes_(text.encode())
        if rehashed:
            file.attrs["sha256"] = np.bytes_(content_hash(arrays, text).encode())


def set_attribute(path: Path, name: str, value: object) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs[name] = value


def header(**values: Any) -> Change:
    return lambda head, _: head.update(values)


def setting(**values: Any) -> Change:
    return lambda head, _: head["settings"].update(values)


def edit(name: str, value: Any) -> Change:
    def change(_: object, arrays: dict[str, Any]) -> None:
        arrays[name] = value(arrays[name]) if callable(value) else value

    return change


def set_first(number: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that sets the first element of an array and returns the array."""

    def change(array: np.ndarray) -> np.ndarray:
        array.flat[0] = number
        return array

    return change


WIDE = network_toml(replace(find_network("mlp_99999"), name="mlp"))
BIASED = network_toml(MLP_NETWORK).replace("outputs = 100", "outputs = 100\nbias = true")
STALE = r"a damaged checkpoint \(its hash differs"
HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "array": (lambda path: change_checkpoint(path, edit("velocity_fc1", set_first(1)), rehashed=False), STALE),
    "history": (lambda path: change_checkpoint(path, edit("history", set_first(2)), rehashed=False), STALE),
    "schema": (lambda path: set_attribute(path, "schema", 99), "a checkpoint of another version"),
    "kind": (lambda path: set_attribute(path, "kind", np.bytes_(b"x")), "not a checkpoint of a training"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:5000]), ""),
    "foreign": (lambda path: path.write_bytes(b"no HDF5"), "not an HDF5 file"),
    "weights": (lambda path: path.write_bytes(weights_path("lenet5").read_bytes()), "not a checkpoint of a training"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_checkpoints_are_refused(harm: str, refused: Refused, place: Path) -> None:
    """The command refuses the checkpoint and trains nothing."""
    unfinished(place / "c.checkpoint")
    HARMS[harm][0](place / "c.checkpoint")
    refused(["--resume", "c.checkpoint", *OWN[:4]], f"c.checkpoint is {HARMS[harm][1]}")


# --- one wrong value, with a valid hash: values are checked as options are

WRONG: dict[str, tuple[Change, str]] = {
    "epochs": (setting(epochs=10**30), r"\.settings\.epochs: 1000.* is not between 1 and 10,000"),
    "rate": (setting(rate=float("nan")), "NaN is not a JSON number"),
    "seed": (setting(seed=2**64), r"\.seed: 18446744073709551616 is not between"),
    "l2": (setting(l2=-1), r"\.l2: -1 is not at least 0 and at most 1000"),
    "smoothing": (setting(smoothing="x"), r"\.smoothing: 'x' is not a number"),
    "no worker": (header(workers=0), r"\.workers: 0 is not between 1 and"),
    "optimiser": (setting(optimiser=["sgd"]), r"\.optimiser: a list is none of adamw, sgd"),
    "storage": (setting(storage="int8"), r"\.storage: 'int8' is none of"),
    "dropout": (setting(dropout=[["fc1", 1]]), r"\.dropout\[0\]\[1\]: 1 is not below 1"),
    "dropout of none": (setting(dropout=[["fc9", 0.5]]), "dropout of layers that the network has not"),
    "biases": (setting(biases=["fc9"]), "biases of layers that the network has not"),
    "network": (setting(network="resnet"), "its network has another name"),
    "definition": (setting(definition="input = 5"), "its network, line 1: layers are missing"),
    "no definition": (setting(definition=5), r"\.definition: 5 is no text"),
    "bias": (setting(definition=BIASED, biases=["fc2"]), "no bias in a layer that must have one"),
    "surrogate": (setting(network="\ud800"), r"\.network: '.ud800' is not one line"),
    "held out": (setting(validation=60), "more held out than there are images"),
    "data": (setting(data="0" * 63), r"\.data: it is not a SHA-256"),
    "other": (setting(x=1), "'x' is unknown"),
    "best": (header(best_epoch=2), "its history is not that of its best epoch"),
    "workers": (header(workers=53), "more workers than images of a batch"),
    "trained on": (header(trained_on="a\nb"), r"\.trained_on: 'a.nb' is not one line"),
    "options": (header(options={"output": "x"}), r"\.options: 'output' is unknown"),
    "lists": (header(settings=[]), r"\.settings: a list is not an object"),
    "nan": (edit("parameter_fc1", set_first(np.nan)), "parameter_fc1 contains NaN or infinite"),
    "infinite": (edit("velocity_fc2", set_first(np.inf)), "velocity_fc2 contains NaN or infinite"),
    "shape": (edit("best_fc1", lambda array: array.T.copy()), "best_fc1 has another shape or type"),
    "float16": (edit("best_fc2", lambda array: array.astype(np.float16)), "best_fc2 has another shape or type"),
    "not the best": (edit("best_fc2", set_first(1)), "its best parameters are not those of the best epoch"),
    "history": (edit("history", np.ones((1, 4))), "its history has the wrong type"),
    "no history": (edit("history", np.ones((0, 5))), "its history"),
    "accuracy": (edit("history", np.full((1, 5), 2.0)), "impossible figures"),
    "loss": (edit("history", np.full((1, 5), -1.0)), "impossible figures"),
    "adamw": (setting(optimiser="adamw"), "it is too small for its network"),
    "no biases": (setting(biases=[]), "its arrays are not those of its network"),
    "fewer arrays": (lambda _, arrays: arrays.pop("velocity_fc1"), "its arrays are not those of its network"),
    "no header": (lambda head, _: head.clear(), "best_epoch, options, settings, trained_on, workers missing"),
}


@pytest.mark.parametrize("change", WRONG)
def test_one_wrong_value_is_refused(change: str, tmp_path: Path) -> None:
    """All else in the checkpoint is valid."""
    unfinished(tmp_path / "c")
    change_checkpoint(tmp_path / "c", WRONG[change][0])
    message = user_error(lambda: load_checkpoint(tmp_path / "c"))
    assert re.search(rf"c is a damaged checkpoint \(.*{WRONG[change][1]}.*\): take another copy", message)
    assert message.isprintable()


def test_random_headers_are_refused_or_valid() -> None:
    """Each of 1,000 altered headers is refused in one line, or has values that the command line accepts."""
    rng, options = random.Random(16), load_parser("train")
    settings = some_settings(dropout=(("fc1", 0.25),))
    figures = {"best_epoch": 1, "workers": 1, "trained_on": "the CPU", "options": {"plot": "/x"}}
    sound = json.loads(header_json(settings, figures))
    taken = 0
    for _ in range(1000):
        try:
            found = settings, model, values = parse_header(garbled(rng, sound))
        except BadValueError as error:
            assert str(error).isprintable() and len(str(error)) < 300
            continue
        taken += 1
        assert parse_header(header_json(settings, values)) == found and model.network.name == settings.network
        for name, value in vars(settings).items():
            if "type" in SETTINGS[name].option:
                options.parse_args([f"--{name.replace('_', '-')}={value}"])
    assert 0 < taken < 200


# --- a network from a TOML file


OWN_NETWORK = """
input = [1, 28, 28]
pixel_scale = 1
[[layers]]
type = "conv2d"
maps = 4
kernel = 3
padding = 1
bias = false
[[layers]]
type = "maxpool"
window = 2
[[layers]]
type = "flatten"
[[layers]]
type = "tanh"
[[layers]]
type = "linear"
outputs = 3
bias = true
"""


def test_a_network_from_a_file(train: Train, place: Path, refused: Refused) -> None:
    """The training uses the general recipe and the file's biases and pixel scale; it resumes without the file."""
    (place / "own.toml").write_text(OWN_NETWORK)
    asked = ["--network", "own.toml", *OWN, "--epochs", "4"]
    code, out, err = train(*asked, "--out", "whole.h5")
    assert (code, err) == (0, "") and "training own on the CPU" in out and "epochs 4" in out
    with interrupt_after(2):
        assert train(*asked)[0] == 2
    (place / "other.toml").write_text(OWN_NETWORK.replace("maps = 4", "maps = 5"))
    wrong = "--network other.toml differs from own_trained.h5.checkpoint, which was started with --network own: leave"
    refused("--resume own_trained.h5.checkpoint --network other.toml", wrong)
    with interrupt_after(3):
        assert train("--resume", "own_trained.h5.checkpoint", "--network", "own.toml")[0] == 2
    (place / "own.toml").unlink()
    assert train("--resume", "own_trained.h5.checkpoint")[0] == 0
    assert (place / "own_trained.h5").read_bytes() == (place / "whole.h5").read_bytes()
    weights = load_weights(place / "own_trained.h5")
    assert weights.network == "own" and weights.input_scale == 1.0
    assert weights.arrays.keys() == {"conv1", "fc1", "fc1_bias"} and weights.stored_network().pixel_scale == 1.0
    own = ["--data", "images", "--labels", "labels", "--device", "cpu"]
    assert main(["--weights", "own_trained.h5", *own]) == 0
