"""Test ``main.py classify``: many shards give the bytes of one pass; errors name the shard; --resume and Ctrl-C."""

import json
import os
import re
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.classify import outputs, pieces
from app.classify.receipts import file_sha256
from app.classify.report import as_text
from app.classify.shards.sources import GzipArrayReader
from app.cli import main
from app.engine.classifier import Classifier
from app.engine.opening import cpu_engine_class
from app.files.writing import hold_lock
from app.layers import Tanh
from app.network.weights import save_weights
from data_tools.idx import read_idx, write_idx
from tests.support.networks_for_tests import FLAT, random_graph, random_images
from tests.support.schemas import mistakes, printed_wide
from tests.support.shell import Refuses, started, wait_for

COUNT, EDGES = 3000, (0, 1, 700, 1500, 1501, 2200, 2900, 3000)
GRAPH = random_graph(FLAT)
IMAGES = random_images(FLAT, COUNT)
BASE = ["--device", "cpu", "--weights", "own.h5"]
Classify = Callable[..., Any]


@pytest.fixture
def shards(place: Path) -> list[str]:
    """Write weights and seven shards, every other one compressed, with labels beside them; return the shards' names."""
    save_weights(Path("own.h5"), GRAPH.parameters, network=FLAT)
    with Classifier("own.h5", device="cpu") as classifier:
        labels = classifier(IMAGES)
    labels[::100] = (labels[::100] + 1) % 3
    names = []
    for number, (start, stop) in enumerate(pairwise(EDGES)):
        ending = ".gz" if number % 2 else ""
        names.append(f"{number}-images-idx3-ubyte{ending}")
        write_idx(Path(names[-1]), IMAGES[start:stop, 0])
        write_idx(Path(f"{number}-labels-idx1-ubyte{ending}"), labels[start:stop])
    return names


@pytest.fixture
def classify(capsys: pytest.CaptureFixture[str]) -> Classify:
    """Return a function that runs the command on the CPU with ``--json -`` and returns the report."""

    def run(*arguments: str, out: str = "results") -> dict[str, Any]:
        assert main(["classify", *BASE, "--out", out, "--json", "-", *arguments]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert not mistakes(found)
        return found

    return run


def load_results(names: list[str], kind: str = "labels", folder: str = "results") -> np.ndarray:
    """Return the results of the shards, one after another. kind: labels or logits."""
    return np.concatenate([np.load(Path(folder) / f"{name.removesuffix('.gz')}.{kind}.npy") for name in names])


def test_seven_shards_give_the_bytes_of_one(shards: list[str], classify: Classify) -> None:
    found = classify("*-images-*", "--logits")
    assert found["shards"] == {"classified": 7, "kept": 0, "unreadable": []}
    assert (found["images"], found["compared"], found["correct"]) == (COUNT, COUNT, COUNT - COUNT // 100)
    assert found["classified"]["images"] == sum(row["images"] for row in found["devices"]) == COUNT
    write_idx(Path("all-images"), IMAGES[:, 0])
    whole = classify("all-images", "--logits")
    assert whole["correct"] is None
    assert whole["arithmetic"] == found["arithmetic"] == f"fp32 by {cpu_engine_class().library}"
    for kind in ("labels", "logits"):
        assert load_results(shards, kind).tobytes() == load_results(["all-images"], kind).tobytes()
    with Classifier("own.h5", device="cpu") as classifier:
        assert (load_results(shards) == classifier(IMAGES)).all()
        np.testing.assert_allclose(load_results(shards, "logits"), classifier.logits, rtol=1e-5, atol=1e-5)


def test_start_and_count_select_images(shards: list[str], classify: Classify) -> None:
    classify(*shards)
    found = classify(*shards, "--start", "650", "--count", "1000", out="part")
    assert found["images"] == found["classified"]["images"] == 1000
    assert found["correct"] == 990
    names = shards[1:5]
    assert sorted(path.name for path in Path("part").glob("*.npy")) == [
        f"{name.removesuffix('.gz')}.labels.npy" for name in names
    ]
    assert (load_results(names, folder="part") == load_results(shards)[650:1650]).all()


def test_compressed_labels_of_plain_images_are_read_once(
    shards: list[str], classify: Classify, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If pieces were compared one by one, each would decompress the labels from the beginning."""
    labels = read_idx(Path("2-labels-idx1-ubyte"), 1)
    write_idx(Path("labels.gz"), labels)
    monkeypatch.setattr(pieces, "CPU_PIECE", 100)
    restarts, restart = [], GzipArrayReader._restart

    def record_restart(source: GzipArrayReader) -> None:
        restarts.append(source)
        restart(source)

    monkeypatch.setattr(GzipArrayReader, "_restart", record_restart)
    found = classify(shards[2], "--labels", "labels.gz", "--start", "150")
    assert found["correct"] == found["compared"] - 6 == 644 and len(restarts) == 1
    write_idx(Path("labels.gz"), np.full(800, 3, np.uint8))
    assert main(["classify", *BASE, "--out", "wrong", shards[2], "--labels", "labels.gz"]) == 2
    assert not list(Path("wrong").iterdir())


def test_resume_classifies_only_what_is_missing(shards: list[str], classify: Classify) -> None:
    classify(*shards)
    expected = load_results(shards)
    Path("results/2-images-idx3-ubyte.json").unlink()
    with Path("results/4-images-idx3-ubyte.labels.npy").open("r+b") as file:
        file.truncate(200)
    found = classify(*shards, "--resume")
    assert found["shards"] == {"classified": 2, "kept": 5, "unreadable": []}
    assert found["classified"]["images"] == 800 + 699 and found["correct"] == COUNT - COUNT // 100
    text = as_text(found)
    assert f"{COUNT:,} images in 7 shards" in text and "5 shards of an earlier run" in text
    assert (load_results(shards) == expected).all()
    again = classify(*shards, "--resume")
    assert again["classified"] is None and again["shards"]["kept"] == 7 and again["correct"] == found["correct"]


def test_ctrl_c_while_several_processes_wait_for_the_check_of_results(
    shards: list[str], classify: Classify, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    classify(*shards)
    checked = []

    def interrupt_hashing(path: Path) -> str:
        checked.append(path)
        os.kill(os.getpid(), signal.SIGINT)
        return file_sha256(path)

    monkeypatch.setattr(outputs, "file_sha256", interrupt_hashing)
    assert main(["classify", *BASE, "--out", "results", *shards, "--resume", "--workers", "2"]) == 2
    assert capsys.readouterr().err.startswith("error: interrupted") and len(checked) == 1


def test_resume_refuses_another_network_of_the_same_name(
    shards: list[str], classify: Classify, refuses: Refuses
) -> None:
    classify(*shards)
    other = replace(FLAT, layers=tuple(Tanh("relu") if layer.name == "relu" else layer for layer in FLAT.layers))
    save_weights(Path("own.h5"), GRAPH.parameters, network=other)
    refuses(["classify", *BASE, "--out", "results", "--resume", *shards], "is of other network")


@pytest.mark.parametrize("options", [[], ["--workers", "3"]], ids=["alone", "processes"])
def test_unreadable_shards_are_named_and_the_others_finished(
    options: list[str], shards: list[str], classify: Classify, capsys: pytest.CaptureFixture[str]
) -> None:
    """With several processes, none may end because of an unreadable shard."""
    classify(*shards, "--logits", out="good")
    content = bytearray(Path(shards[3]).read_bytes())
    content[len(content) // 2] ^= 255
    Path(shards[3]).write_bytes(content)
    Path(shards[6]).write_bytes(Path(shards[6]).read_bytes()[:-1])
    report = ["--logits", "--json", "report.json"]
    assert main(["classify", *BASE, "--out", "results", *shards, *options, *report]) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["unreadable", "unreadable", "error"]
    assert shards[6] in lines[0] and shards[3] in lines[1]
    assert "2 of 7 shards cannot be read" in lines[2] and shards[3] in lines[2] and shards[6] in lines[2]
    assert "unreadable  2 shards" in out
    found = json.loads(Path("report.json").read_text())
    assert found["images"] == found["compared"] == sum(row["images"] for row in found["devices"])
    left = [name for name in shards if name not in (shards[3], shards[6])]
    assert main(["classify", *BASE, "--out", "two", *shards[2:4]]) == 2
    assert capsys.readouterr().err.startswith("unreadable: ")
    assert found["correct"] == found["images"] - 28 and found["shards"]["classified"] == len(left)
    for kind in ("labels", "logits"):
        assert len([*Path("results").glob(f"*.{kind}.npy")]) == len(left)
        assert load_results(left, kind).tobytes() == load_results(left, kind, "good").tobytes()


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("coloured", r"has images of shape \(3, 5, 9\)"),
        ("0-images-idx3-ubyte fractions.npy --count 1", "fractions.npy has float32 images .*: classify them in runs"),
        ("other 0-images-idx3-ubyte --count 1", r"has images of shape \(1, 9, 5\)"),
        ("0-images-idx3-ubyte 2-images-idx3-ubyte --start 801", "--start 801 is beyond the 801 images"),
        ("0-images-idx3-ubyte --labels 2-labels-idx1-ubyte", "800 labels but .* 1 images"),
        ("0-images-idx3-ubyte --labels big", "big.* label 3, but the network has classes 0 to 2"),
    ],
)
def test_inputs_that_do_not_fit(words: str, wrong: str, shards: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    np.save("coloured.npy", np.zeros((2, 3, 5, 9), np.uint8))
    Path("coloured.npy").rename("coloured")
    np.save("fractions.npy", np.full((2, 5, 9), 0.3, np.float32))
    write_idx(Path("other"), np.zeros((2, 9, 5), np.uint8))
    write_idx(Path("big"), np.array([3], np.uint8))
    assert main(["classify", *BASE, "--out", "results", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert not out and re.search(wrong, err) and "cannot be read" not in err, err


@pytest.mark.parametrize("option", ["--workers 2", "--scheduler tcp://127.0.0.1:9"])
def test_several_processes_need_dask(
    option: str, shards: list[str], refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cluster.find_spec", lambda _: None)
    refuses(["classify", *BASE, *option.split(), "--out", "results", *shards], f"{option.split()[0]} needs Dask: ")
    assert not Path("results").exists()


def test_output_folder_that_cannot_be_made(shards: list[str], refuses: Refuses) -> None:
    Path("dangling").symlink_to("nowhere")
    refuses(["classify", *BASE, "--out", "dangling", *shards], "--out dangling is no folder that can be made")


def test_a_folder_that_cannot_be_used_is_refused_before_a_device_starts(
    shards: list[str], refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order matters, because several GPUs take seconds to start."""
    monkeypatch.setattr("app.classify.command.open_runner", Mock(side_effect=AssertionError("a device starts")))
    Path("results").mkdir()
    command = ["classify", *BASE, "--out", "results", *shards]
    with hold_lock(Path("results") / outputs.LOCK, str, ""):
        for more in ([], ["--overwrite"], ["--resume"]):
            refuses([*command, *more], f"process {os.getpid()} is classifying into results: ")
    Path("results/0-images-idx3-ubyte.json").touch()
    refuses(command, "results/0-images-idx3-ubyte.json exists: ")
    refuses(["classify", *BASE, "--out", "own.h5", *shards], "--out own.h5 is no folder that can be made")
    assert [path.name for path in Path("results").iterdir()] == ["0-images-idx3-ubyte.json"]


def test_a_full_disk(shards: list[str], refuses: Refuses, request: pytest.FixtureRequest) -> None:
    """The system's limit on the size of written files stands in for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before))
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, before[1]))
    refuses(["classify", *BASE, "--logits", "--out", "results", *shards], "cannot write .*logits.npy: File too large")
    assert not [path for path in Path("results").iterdir() if path.stat().st_size > 8000 or path.suffix == ""]


def test_the_report_fits_the_terminal(shards: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = printed_wide(f"classify {' '.join(BASE)} --out results --overwrite {' '.join(shards)}", capsys)
    assert "2,970 / 3,000 correct = 99.00%" in text and "limited by" in text


def test_an_interruption_leaves_only_complete_files(place: Path) -> None:
    """One shard is finished, and one would take minutes. tests/cluster interrupts several processes."""
    save_weights(Path("own.h5"), GRAPH.parameters, network=FLAT)
    write_idx(Path("a"), IMAGES[:100, 0])
    with Path("b.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (10**8, 5, 9)})
        file.truncate(file.tell() + 10**8 * 45)
    process = started(place, "classify", *BASE, "--out", "results", "a", "b.npy")
    try:
        wait_for(Path("results/a.json").exists)
        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - start < 5
    finally:
        process.kill()
    assert (process.returncode, out) == (2, "") and err.splitlines()[-1].startswith(
        "error: interrupted; 1 of 2 shards have "
    )
    assert err.endswith(" again with --resume\n")
    assert {path.name for path in Path("results").iterdir() if path.suffix} >= {"a.json", "a.labels.npy"}
    assert not [path for path in Path("results").iterdir() if path.name.startswith("b") or path.suffix == ".part"]
