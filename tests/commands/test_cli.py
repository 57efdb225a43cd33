"""Test the command line: output and files of a run, and when its accuracy check passes."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.precision import BY_DTYPE
from app.cli import main
from app.engine.cpu import CpuEngine
from app.main_job import job as main_job
from app.network.definitions import LENET5
from app.network.graph import Graph
from app.network.reference import load_reference
from app.network.verdicts import Reference
from app.network.weights import load_weights, save_weights
from data_tools.fashion_mnist import CLASSES, open_split
from data_tools.idx import write_idx
from tests.support.hostile_hdf5 import write_hdf5
from tests.support.outside import first_hundred_alone
from tests.support.schemas import mistakes
from tests.support.shell import listing, shell

CPU = ("--device", "cpu")
PROMISED = load_weights().expected_correct
Report = dict[str, Any]
Run = Callable[..., tuple[int, str, Report]]


pytestmark = pytest.mark.usefixtures("first_hundred")


@pytest.fixture
def fashion() -> tuple[np.ndarray, np.ndarray]:
    """Return the first hundred test images, (100, 28, 28) uint8, and their labels."""
    return open_split("test")[:2]


@pytest.fixture
def own_files(tmp_path: Path, fashion: tuple[np.ndarray, np.ndarray]) -> tuple[str, ...]:
    """Write these images and labels in reverse order as a user's files; return the options that name the files."""
    write_idx(tmp_path / "images.gz", fashion[0][::-1])
    write_idx(tmp_path / "labels", fashion[1][::-1])
    return "--data", str(tmp_path / "images.gz"), "--labels", str(tmp_path / "labels")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs main.py on the CPU and returns the exit code, the text and the JSON report."""

    def run(*arguments: str) -> tuple[int, str, Report]:
        code = main([*CPU, "--json", str(tmp_path / "report.json"), "--overwrite", *arguments])
        out, err = capsys.readouterr()
        assert err == ""  # neither progress bars nor warnings where standard error is no terminal
        report = json.loads((tmp_path / "report.json").read_text())
        assert not mistakes(report)
        return code, out, report

    return run


def write_hdf5_data(path: Path, images: np.ndarray, labels: np.ndarray) -> str:
    """Write images, (N, 28, 28) in [0, 1], and labels as HDF5 datasets x and y, like system 1; return ``path``."""
    return str(write_hdf5(path, {"x": images.astype(np.float32)[..., None], "y": np.eye(10)[labels]}))


# --- runs that pass


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_text_and_report(batch: int, run: Run, fashion: tuple[np.ndarray, np.ndarray]) -> None:
    code, out, report = run("--batch", str(batch))
    reference = load_reference(load_weights(), LENET5)
    assert reference is not None
    correct = int((reference.labels[:batch] == fashion[1][:batch]).sum())
    assert code == 0 and report["accuracy"]["correct"] == correct
    assert f"Accuracy: {correct} / {batch} correct = {correct / batch:.2%}" in out and "agreement  PASSED: " in out
    assert report["limit"].startswith("limited by") and " ".join(out.split()).endswith(report["limit"])
    assert "\x1b" not in out and "\r" not in out and CLASSES[reference.labels[0]] in out


def test_training_images(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first_hundred_alone(monkeypatch, "train")
    code, _, report = run("--split", "train", "--batch", "50")
    assert code == 0 and report["data"]["split"] == "train"
    assert report["agreement"]["reference"].startswith("recomputed") and report["agreement"]["compared"] == 50


def test_cycle(run: Run, own_files: tuple[str, ...]) -> None:
    first = [run(*own_files, "--batch", str(batch))[2]["accuracy"]["correct"] for batch in (100, 50)]
    code, out, report = run(*own_files, "--batch", "250", "--cycle")
    assert code == 0 and report["batch"] == report["accuracy"]["total"] == 250
    assert report["accuracy"]["correct"] == 2 * first[0] + first[1]
    assert "/ 250 correct" in out


def test_original_files(run: Run, tmp_path: Path, fashion: tuple[np.ndarray, np.ndarray]) -> None:
    write_hdf5(tmp_path / "model.hdf5", load_weights().arrays)
    data = write_hdf5_data(tmp_path / "test100.hdf5", fashion[0] / 255, fashion[1])
    code, out, report = run("--weights", str(tmp_path / "model.hdf5"), "--data", data)
    assert code == 0 and f"{PROMISED[100]} / 100 correct" in out
    assert not any(name in out for name in CLASSES)  # user files may show anything, such as digits
    assert report["data"]["dtype"] == "uint8"  # they were pixels, divided by 255


def test_floats_that_are_no_pixels(run: Run, tmp_path: Path, fashion: tuple[np.ndarray, np.ndarray]) -> None:
    data = write_hdf5_data(tmp_path / "dim.hdf5", fashion[0] * (0.9 / 255), fashion[1])
    code, _, report = run("--data", data)
    assert code == 0 and report["data"]["dtype"] == "float32"


@pytest.mark.parametrize("more", [(), ("--batch", "150", "--cycle")])
def test_labels_none(more: tuple[str, ...], run: Run, tmp_path: Path, fashion: tuple[np.ndarray, np.ndarray]) -> None:
    data = write_hdf5_data(tmp_path / "data.hdf5", fashion[0] / 255, fashion[1])  # its labels are not to be used
    code, out, report = run("--data", data, "--labels", "none", *more)
    answers = report["accuracy"]
    assert code == 0 and report["passed"] and answers["correct"] is answers["passed"] is None
    assert "Accuracy: unlabelled" in out


def test_images_without_labels_are_compared_with_nothing(
    own_files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CPU, *own_files[:2], "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith(f"note: {own_files[1]} has no labels: ") and err.count("\n") == 1
    assert main([*CPU, *own_files[:2], "--labels", "none", "--json", "-"]) == 0
    asked, nothing = capsys.readouterr()
    assert nothing == "" and json.loads(out)["accuracy"] == json.loads(asked)["accuracy"]


def test_recheck_compares_all_images(run: Run, own_files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_job, "RECHECKED", 5)
    stored, sample, every = (run(*a)[2] for a in (("--batch", "100"), own_files, (*own_files, "--recheck")))
    assert stored["agreement"]["reference"] == "stored float64 reference"
    assert sample["agreement"]["reference"] == every["agreement"]["reference"] == "recomputed float64 reference"
    assert stored["accuracy"]["expected"] == PROMISED[100]
    assert sample["accuracy"]["expected"] is None  # these are the user's own
    assert [found["agreement"]["compared"] for found in (stored, sample, every)] == [100, 5, 100]
    assert run("--batch", "20", "--recheck")[2]["agreement"]["reference"] == "recomputed float64 reference"


# --- runs whose check fails


def test_stored_labels_that_differ(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = load_reference(load_weights(), LENET5)
    assert real is not None
    labels, margins = real.labels.copy(), real.margins.copy()
    labels[2:4] = (labels[2:4] + 1) % 10
    near_tie = BY_DTYPE["float32"].near_tie * real.magnitudes[2:4]
    margins[2:4] = near_tie[0] * 2, near_tie[1] / 2  # the second difference is a near-tie
    monkeypatch.setattr(main_job, "load_reference", lambda *_: Reference(labels, margins, real.magnitudes))
    code, out, report = run("--batch", "10")
    assert code == 1 and "FAILED: 1 of 10 labels differ" in out and "image 2: " in out
    assert [difference["excused"] for difference in report["agreement"]["differences"]] == [False, True]


def test_recomputed_labels_that_differ(run: Run, own_files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    compute = main_job.compute_reference

    def compute_wrong_labels(graph: Graph, images: np.ndarray) -> Reference:
        found = compute(graph, images)
        return replace(found, labels=(found.labels + 1) % 10)

    monkeypatch.setattr(main_job, "compute_reference", compute_wrong_labels)
    code, out, _ = run(*own_files)
    assert code == 1 and "FAILED: 100 of 100 labels differ" in out and "WRONG" in out


def test_fewer_correct_labels_than_the_weights_promise(run: Run, tmp_path: Path) -> None:
    promise = {100: PROMISED[100] + 1}
    path, arrays = tmp_path / "boast.h5", load_weights().arrays
    save_weights(path, arrays, network=LENET5, expected_correct=promise)
    code, out, _ = run("--weights", str(path), "--batch", "100")
    assert code == 1 and f"{PROMISED[100]} correct where the weights file promises {PROMISED[100] + 1}" in out


def test_unsteady_passes(run: Run, own_files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    calls, classify = iter(range(100)), CpuEngine.run

    def change_fourth_call(*arguments: Any) -> Any:
        outputs = classify(*arguments)
        outputs.labels[0] ^= next(calls) == 3  # the warm-up, the first pass and the second are as they should be
        return outputs

    monkeypatch.setattr(CpuEngine, "run", change_fourth_call)
    code, out, _ = run(*own_files, "--batch", "300", "--cycle")
    assert code == 1 and "1 passes over the data gave other labels than the first" in out


# --- closed streams, and encodings without some characters


@pytest.mark.parametrize(
    "arguments", [CPU, ("--help",), ("cache", "--json", "-"), ("predict", "--logits")], ids=" ".join
)
def test_reader_that_has_gone(arguments: tuple[str, ...], own_files: tuple[str, ...]) -> None:
    """Expect the exit code that shells report for cat or grep if nobody reads their output."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        files = own_files if arguments == CPU else own_files[1:2] if "predict" in arguments else ()
        done = shell(*arguments, *files, stdout=pipe)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_closed_streams(own_files: tuple[str, ...]) -> None:
    assert shell(*CPU, *own_files, prefix=("sh", "-c", 'exec "$@" >&- 2>&-', "sh")).returncode == 0


def test_characters_that_cannot_be_printed(own_files: tuple[str, ...], tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xe4.gz")  # not UTF-8
    Path(own_files[1]).rename(tmp_path / name)
    before = listing(tmp_path)
    done = shell(
        *CPU, "--data", name, *own_files[2:], "--json", "report", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stderr) == (0, "") and r"\udcff\udce4.gz" in done.stdout
    assert f"Accuracy: {PROMISED[100]} / 100 correct" in done.stdout
    assert json.loads((tmp_path / "report").read_text())["data"]["source"] == name
    assert listing(tmp_path).keys() == {*before, "report"}


@pytest.mark.parametrize("count", [1, 129])
def test_few_images(count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Classify fewer images than a chunk, and a chunk and one more."""
    images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    write_idx(tmp_path / "images", images)
    assert main(["--device", "cpu", "--data", str(tmp_path / "images"), "--labels", "none"]) == 0
    assert f"all {count} labels equal the recomputed float64 reference" in capsys.readouterr().out
