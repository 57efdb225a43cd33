"""Test ``train --start``, which continues from given weights and keeps zeros, and ``--teacher``."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.kernels.plain_problems import is_two_of_four
from app.network.definitions import LENET5, MLP
from app.network.graph import build_graph
from app.network.reference import compute_reference
from app.network.weights import load_weights, save_weights
from app.training.loop import split_validation
from data_tools.idx import read_idx, write_idx
from tests.support.networks_for_tests import random_graph
from tests.support.sparsity import drawn_two_of_four
from tests.support.training_for_tests import OWN, Refused, Train, last_of_each, some_settings
from tests.training.test_train_command import interrupt_after


def write_sparse_weights(path: Path, bias: bool = False) -> dict[str, np.ndarray]:
    """Write random weights of lenet5 with 2:4 sparse conv2 filters; return the arrays."""
    arrays = dict(random_graph(LENET5, bias=bias).parameters)
    arrays["conv2"][:] = drawn_two_of_four(np.random.default_rng(5)) / 30
    save_weights(path, arrays, network=LENET5)
    return arrays


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_sparse_convolution_stays_sparse(device: str, bias: bool, train: Train, place: Path) -> None:
    start = write_sparse_weights(place / "start.h5", bias)
    words = ["--start", "start.h5", *OWN, "--images", "40", "--epochs", "2", "--device", device]
    code, out, err = train(*words)
    assert (code, err) == (0, "") and "wrote lenet5_trained.h5" in out
    found = load_weights(place / "lenet5_trained.h5")
    assert f"from the weights {load_weights(place / 'start.h5').sha256[:12]}, whose zeros stay" in str(found.recipe)
    assert found.arrays.keys() == start.keys() and is_two_of_four(found.arrays["conv2"])
    np.testing.assert_array_equal(found.arrays["conv2"] == 0, start["conv2"] == 0)
    for name, array in found.arrays.items():
        moved = np.abs(array - start[name])
        assert moved.any() and moved.max() < 0.2, name


def test_a_resumed_training_with_start_gives_the_same_bits(train: Train, place: Path) -> None:
    """The checkpoint suffices: the file of ``--start`` has been removed."""
    write_sparse_weights(place / "start.h5")
    words = ["--start", "start.h5", *OWN, "--images", "40", "--epochs", "3"]
    assert train(*words, "--out", "whole.h5")[0] == 0
    with interrupt_after(1):
        assert train(*words, "--out", "parts.h5")[0] == 2
    (place / "start.h5").unlink()
    assert train("--resume", "parts.h5.checkpoint", *OWN[:4])[0] == 0
    assert (place / "whole.h5").read_bytes() == (place / "parts.h5").read_bytes()


def test_the_teachers_answers_are_learned(train: Train, place: Path) -> None:
    """All training labels are wrong. A resumed training needs the same teacher, and gives the same bits."""
    assert train("--network", "mlp", *OWN, "--epochs", "20", "--out", "teacher.h5")[0] == 0
    labels = read_idx(place / "labels", 1)
    training, _ = split_validation(some_settings())
    wrong = labels.copy()
    wrong[training] += 3
    write_idx(place / "wrong", wrong)
    words = last_of_each([*OWN, "--network", "mlp", "--labels", "wrong", "--teacher", "teacher.h5", "--epochs", "20"])
    code, _, err = train(*words, "--out", "whole.h5")
    assert (code, err) == (0, "")
    digest = load_weights(place / "teacher.h5").sha256
    pupil = load_weights(place / "whole.h5")
    assert f"taught by the weights {digest[:12]}" in str(pupil.recipe)
    images = read_idx(place / "images", 3)[:, None]
    found = [
        compute_reference(build_graph(MLP, load_weights(place / name)), images).labels
        for name in ("teacher.h5", "whole.h5")
    ]
    assert (found[0] == labels).mean() > 0.9 and (found[1] == labels).mean() > 0.9
    with interrupt_after(1):
        assert train(*words, "--out", "parts.h5")[0] == 2
    (place / "teacher.h5").rename(place / "moved.h5")
    code, _, err = train("--resume", "parts.h5.checkpoint", *OWN[:2], "--labels", "wrong")
    assert code == 2 and "teacher.h5 does not exist" in err
    shutil.copy(place / "whole.h5", place / "teacher.h5")
    code, _, err = train("--resume", "parts.h5.checkpoint", *OWN[:2], "--labels", "wrong")
    assert code == 2 and "parts.h5.checkpoint needs the teacher that it was started with" in err
    assert train("--resume", "parts.h5.checkpoint", "--teacher", "moved.h5", *OWN[:2], "--labels", "wrong")[0] == 0
    assert (place / "whole.h5").read_bytes() == (place / "parts.h5").read_bytes()


def test_wrong_files_are_refused(refused: Refused, place: Path) -> None:
    arrays = write_sparse_weights(place / "start.h5")
    save_weights(place / "scaled.h5", arrays, network=replace(LENET5, pixel_scale=1 / 128), input_scale=1 / 128)
    save_weights(place / "mlp.h5", random_graph(MLP).parameters, network=MLP)
    own = " ".join(OWN)
    refused(f"--start missing.h5 {own}", "missing.h5 does not exist")
    refused(f"--start start.h5 --resume c {own}", "--resume continues from a checkpoint: leave out --start")
    refused(f"--start mlp.h5 --network lenet5 {own}", "mlp.h5: conv1 is missing, network lenet5 needs")
    same = "is the same file as"
    refused(f"--start start.h5 --out start.h5 --overwrite {own}", f"--out start.h5 {same} --start start.h5")
    for name in ("lenet5_trained.h5", "lenet5_trained.h5.checkpoint"):
        shutil.copy(place / "start.h5", place / name)
        refused(f"--start {name} --overwrite {own}", f"{name} {same} --start {name}")
        refused(f"--teacher {name} --network lenet5 --overwrite {own}", f"{name} {same} --teacher {name}")
        (place / name).unlink()
    refused(f"--teacher mlp.h5 --network lenet5 {own}", "mlp.h5: conv1 is missing, network lenet5 needs")
    refused(
        f"--start scaled.h5 --network lenet5 {own}", "scaled.h5 multiplies pixels by 0.0078.*, network lenet5 by 0.0039"
    )
