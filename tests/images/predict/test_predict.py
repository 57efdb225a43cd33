"""Test ``predict`` on arrays: the main job's answers, in every format, and requests that it refuses."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.cli import main
from app.engine.classifier import Classifier
from app.files import hdf5_process
from app.files.hdf5 import build_hdf5_bytes
from app.images.predict import command
from app.main_job import job as main_job
from app.main_job.result import Outcome
from app.network.definitions import LENET5
from app.network.verdicts import Accuracy
from app.network.weights import load_weights, save_weights
from app.terminal.text import WIDTH
from data_tools.fashion_mnist import CLASSES
from data_tools.idx import write_idx
from tests.images.predict.conftest import Predict
from tests.support.hostile_hdf5 import write_hdf5
from tests.support.shell import check_error, listing

Rows = dict[str, np.ndarray]

FILES: dict[str, Callable[[Path, np.ndarray], object]] = {
    "images": write_idx,
    "images.gz": write_idx,
    "dim.h5": lambda path, images: write_hdf5(path, {"x": (images * np.float32(0.9 / 255))[..., None]}),
    "images.npy": np.save,
    "images.npz": lambda path, images: np.savez_compressed(path, about=np.arange(3), x=images[:, None] / 255.0),
}


ON_GPU = [
    pytest.param(f"--device cuda --precision {name}", marks=pytest.mark.gpu) for name in ("fp32x", "fp32", "fp16")
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", ["--device cpu", *ON_GPU])
def test_labels_are_those_of_the_main_job(
    name: str, where: str, predict: Predict, fashion: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect equal labels for every file format and batch size."""
    FILES[name](Path(name), fashion)
    FILES["images"](Path("same"), fashion)
    told: list[np.ndarray] = []

    def record_labels(graph: Any, weights: Any, data: Any, outcome: Outcome, *more: Any) -> Accuracy:
        told.append(outcome.labels)
        return real(graph, weights, data, outcome, *more)

    real = main_job.judge_labels
    monkeypatch.setattr(main_job, "judge_labels", record_labels)
    data = "same" if ".np" in name else name  # the main job reads no NPY and no NPZ
    assert main([*where.split(), "--data", data, "--labels", "none", "--repeat", "1"]) == 0
    for batch in ("7", "4096"):
        assert predict(name, "--out", "labels.npy", "--overwrite", "--chunk", batch, where=where)[0] == 0
        found = np.load("labels.npy")
        np.testing.assert_array_equal(found["label"], told[0])
        np.testing.assert_array_equal(found["number"], np.arange(100))


@pytest.mark.parametrize("where", ["--device cpu", *ON_GPU])
def test_output_does_not_depend_on_the_batch(where: str, predict: Predict, fashion: np.ndarray) -> None:
    FILES["images.npy"](Path("images.npy"), fashion)
    for batch in ("1", "7", "33", "4096"):
        options = ("--out", f"{batch}.csv", "--logits", "--top", "3", "--batch", batch)
        assert predict("images.npy", *options, where=where)[0] == 0
        assert Path(f"{batch}.csv").read_bytes() == Path("1.csv").read_bytes(), batch


def read_csv(path: str) -> Rows:
    with Path(path).open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        head, *rows = csv.reader(file)
    return {name: np.array(column) for name, column in zip(head, zip(*rows, strict=True), strict=True)}


def read_json_lines(path: str) -> Rows:
    rows = [json.loads(line) for line in Path(path).read_bytes().splitlines()]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def read_npy(path: str) -> Rows:
    rows = np.load(path)
    return {name: rows[name] for name in rows.dtype.names}


def read_parquet(path: str) -> Rows:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(path).to_pydict()
    return {name: np.array(column) for name, column in table.items()}


READERS: dict[str, Callable[[str], Rows]] = {
    ".csv": read_csv,
    ".jsonl": read_json_lines,
    ".npy": read_npy,
    ".npz": lambda path: dict(np.load(path)),
    ".parquet": read_parquet,
}


@pytest.mark.parametrize("ending", READERS)
def test_every_format_is_read_back_exactly(ending: str, predict: Predict, fashion: np.ndarray) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    np.save("images.npy", fashion)
    out = f"answers{ending}"
    code, told, report = predict("images.npy", "--out", out, "--top", "3", "--logits", "--chunk", "64")
    assert (code, told) == (0, "") and "lenet5 in fp32: 100 images in " in report and out in report
    found = READERS[ending](out)
    with Classifier(device="cpu") as classifier:
        labels = classifier(fashion)
        logits, probabilities = classifier.logits, classifier.probabilities
    order = np.argsort(-logits, axis=1)
    ranks = ["", "_2", "_3"]
    names = [f"{name}{rank}" for rank in ranks for name in ("label", "class", "probability")]
    assert list(found) == ["number", *names, *(f"logit_{index}" for index in range(10))]
    np.testing.assert_array_equal(found["label"].astype(int), labels)
    for place, rank in enumerate(ranks):
        np.testing.assert_array_equal(found[f"label{rank}"].astype(int), order[:, place])
        assert [*found[f"class{rank}"]] == [CLASSES[label] for label in order[:, place]]
        chances = np.take_along_axis(probabilities, order, axis=1)[:, place]
        np.testing.assert_array_equal(found[f"probability{rank}"].astype(np.float32), chances)
    for index in range(10):
        np.testing.assert_array_equal(found[f"logit_{index}"].astype(np.float32), logits[:, index])


def test_few_images_are_a_table_and_many_are_csv(predict: Predict, fashion: np.ndarray) -> None:
    np.save("few.npy", fashion[: command.TABLE])
    np.save("many.npy", fashion[: command.TABLE + 1])
    code, table, report = predict("few.npy", "--top", "10")
    assert code == 0 and max(map(len, (table + report).splitlines())) <= WIDTH
    assert re.match(r"  number  class +probability  then\n +0  Ankle boot +9\d\.\d%  Sandal ", table)
    assert predict("few.npy", "--out", "-")[1].startswith("number,label,class,probability\n0,9,Ankle boot,0.9")
    assert predict("many.npy")[1] == predict("many.npy", "--out", "-")[1]
    assert predict("few.npy", "--logits")[1].startswith("number,label,class,probability,logit_0,")


def test_file_and_index_identify_each_image(predict: Predict, fashion: np.ndarray) -> None:
    np.save("b.npy", fashion[5])  # one image
    write_idx(Path("a"), fashion[:2])
    assert predict("b.npy", "a", "b.npy", "--out", "labels.csv")[0] == 0
    found = read_csv("labels.csv")
    assert [*found["path"]] == ["b.npy", "a", "a", "b.npy"] and [*found["number"]] == ["0", "0", "1", "0"]
    assert found["label"][0] == found["label"][3]
    report = predict("b.npy", "gone.png", "--out", "others.csv")[2]
    assert "negated" not in report and "gone.png does not exist" in report


def test_hdf5_files_are_read_by_one_process(
    predict: Predict, fashion: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Mock(side_effect=hdf5_process.Reader)
    monkeypatch.setattr(hdf5_process, "Reader", opened)
    for number in range(5):
        Path(f"{number}.h5").write_bytes(build_hdf5_bytes({"x": fashion[number : number + 1, :, :, None]}, {}))
    assert predict(*(f"{number}.h5" for number in range(5)), "--out", "labels.csv")[0] == 0
    assert [*read_csv("labels.csv")["path"]] == [f"{number}.h5" for number in range(5)]
    assert opened.call_count == 1


def test_classes_are_named_by_the_weights(predict: Predict, fashion: np.ndarray) -> None:
    np.save("images.npy", fashion[:3])
    arrays, digits = load_weights().arrays, [f"{'=+-@ '[n % 5]}{n}, or so" for n in range(10)]
    save_weights(Path("digits.h5"), arrays, network=LENET5, classes=digits)
    save_weights(Path("nameless.h5"), arrays, network=LENET5)
    for weights, names in (("digits.h5", ["label", "class", "probability"]), ("nameless.h5", ["label", "probability"])):
        code, _, report = predict("images.npy", "--weights", weights, "--out", "labels.csv", "--overwrite")
        found = read_csv("labels.csv")
        assert code == 0 and list(found) == ["number", *names] and "brightness" not in report
        assert "class" not in found or [*found["class"]] == [digits[int(label)] for label in found["label"]]


def test_infinite_logits_are_null_in_json(predict: Predict, fashion: np.ndarray) -> None:
    arrays = dict(load_weights().arrays)
    arrays["fc2"] = (arrays["fc2"] / np.abs(arrays["fc2"]).max() * 3e38).astype(np.float32)
    save_weights(Path("huge.h5"), arrays, network=LENET5)
    np.save("images.npy", fashion[:2])
    assert predict("images.npy", "--weights", "huge.h5", "--logits", "--out", "answers.jsonl")[0] == 0
    assert None in read_json_lines("answers.jsonl")["logit_0"]


# Case → arguments, content of the file ``bad`` (bytes or an array), and error.
REFUSED: dict[str, tuple[str, Any, str]] = {
    "whole numbers": ("bad.npy", np.zeros((2, 28, 28), np.int64), "bad.npy is int64; store it as uint8, or as float32"),
    "pixels as floats": ("bad.npy", np.full((2, 28, 28), 254.0), r"bad.npy contains values in 254 … 254; scale them"),
    "objects": ("bad.npy", np.array([{}]), "bad.npy: its content contains pickled objects, which may run code"),
    "no images": ("bad.npy", np.zeros((0, 28, 28), np.uint8), "bad.npy: its content is empty"),
    "a row": ("bad.npy", np.zeros(28, np.uint8), r"bad.npy has shape \(28,\); it must be"),
    "another size": ("bad.npy", np.zeros((2, 28, 27), np.uint8), r"images of shape \(1, 28, 27\) .*: resize them"),
    "other colours": ("bad.npy", np.zeros((2, 3, 28, 28), np.uint8), "name images with as many channels"),
    "half an array": ("bad.npy", b"\x93NUMPY\1\0v\0{'descr'", "bad.npy: its content is no array"),
    "half an archive": ("bad.npz", b"PK\3\4" + bytes(22) + b"\5\0\0\0x.npy", "bad.npz: is no zip archive"),
    "half an IDX": (
        "bad",
        b"\0\0\x08\x03\0\0\0\1\0\0\0\x1c\0\0\0\x1c" + bytes(9),
        "bad declares 784 bytes of content, more than its 25",
    ),
    "too many classes": ("good.npy --top 11", b"", "--top 11: network lenet5 has 10 classes"),
    "an existing file": ("good.npy --out bad.csv", b"", "bad.csv exists: name another --out, or replace it with"),
    "its own input": ("good.npy --out good.npy --overwrite", b"", "--out good.npy is the same file as PATH good.npy"),
    "no folder": ("good.npy --out missing/labels.csv", b"", "--out missing/labels.csv cannot be written"),
    "two sizes": ("good.npy bad.npy", np.zeros((1, 30, 30), np.uint8), "bad.npy has images of shape"),
    "a page as JPEG": ("good.npy --show seen.jpg", b"", "--show seen.jpg is written as PNG: end its name in .png"),
    "a page on output": ("good.npy --show -", b"", "--show -: standard output takes no such file; name a file"),
    "an unset variable": ("", b"", "an empty PATH names nothing: give '.' for this folder"),
    "one output twice": ("good.npy --out a.csv --show a.csv", b"", "--out a.csv is the same file as --show a.csv"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_requests_leave_no_file(case: str, predict: Predict, fashion: np.ndarray) -> None:
    named, content, wrong = REFUSED[case]
    np.save("good.npy", fashion[:2])
    bad = Path(next((word for word in named.split() if "bad" in word), "bad"))
    if isinstance(content, bytes):
        bad.write_bytes(content)
    else:
        np.save(bad, content)
    before = listing(Path())
    arguments = named.split() if "--out" in named else [*(named.split() or [""]), "--out", "labels.csv"]
    check_error(*predict(*arguments), wrong)
    assert listing(Path()) == before


def test_names_of_arrays_in_npz_files(predict: Predict, fashion: np.ndarray) -> None:
    np.savez("two.npz", first=fashion, second=fashion)
    check_error(*predict("two.npz"), "two.npz contains 'first', 'second'; store the images as x or images, or as its")
    np.savez("one.npz", anything=fashion[:1])
    assert predict("one.npz")[0] == 0
