"""Test ``predict`` on pictures: in folders and lists, odd and unreadable ones, and by the commands in documents."""

import io
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.commands.predict import EPILOG
from app.engine.classifier import Classifier
from app.images.predict import command
from app.network.definitions import LENET5
from app.network.weights import load_weights, save_weights
from data_tools.fashion_mnist import CLASSES
from tests.images.predict.conftest import Predict
from tests.images.predict.test_predict import READERS, read_csv
from tests.support.shell import ROOT, check_error, listing, shell

PHOTOS = Path("photos")
ODD = [
    b'comma, quote".png',
    b"line\nend.png",
    b"return\r.png",
    "Stra\u00dfe \u4e2d\u6587.png".encode(),
    b"byte\xff.png",
]


def save_pictures(images: np.ndarray, names: Sequence[str | bytes]) -> None:
    """Save images, (N, 28, 28) uint8, unchanged as PNG files in ``PHOTOS``."""
    PHOTOS.mkdir(exist_ok=True)
    for pixels, name in zip(images, names, strict=True):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        (PHOTOS / os.fsdecode(name)).write_bytes(file.getvalue())


def test_a_folder_of_photos_gives_a_csv(predict: Predict, fashion: np.ndarray) -> None:
    """Test images enlarged onto light canvases of other shapes and colours keep at least 85 % of their labels."""
    PHOTOS.mkdir()
    rng = np.random.default_rng(5)
    for index, pixels in enumerate(fashion[:60]):
        width, height = rng.integers(150, 240, 2).tolist()
        canvas = Image.new("RGB", (width, height), tuple(rng.integers(225, 256, 3).tolist()))
        small = Image.fromarray(255 - pixels)
        canvas.paste(small.resize((112, 112), Image.Resampling.BICUBIC).convert("RGB"), (width - 130, 20))
        canvas.save(PHOTOS / f"{index}.{('jpg', 'png', 'webp')[index % 3]}")
    code, out, report = predict("photos", "--out", "labels.csv", "--show", "seen.png")
    assert (code, out) == (0, "") and "60 of 60 pictures (those darker" in report and "brightness" not in report
    found = read_csv("labels.csv")
    assert [int(Path(path).stem) for path in found["path"]] == [*range(60)]  # in natural order
    with Classifier(device="cpu") as classifier:
        labels = classifier(fashion[:60])
    assert np.mean(np.array(found["label"], int) == labels) >= 0.85
    assert [*found["class"]] == [CLASSES[int(label)] for label in found["label"]]
    with Image.open("seen.png") as seen:
        assert min(seen.size) > 8 * 84


def test_odd_file_names_are_written_unchanged(predict: Predict, fashion: np.ndarray) -> None:
    save_pictures(fashion[:5], ODD)
    wanted = {b"photos/" + name for name in ODD}
    assert predict("photos", "--out", "a.csv")[0] == predict("photos", "--out", "a.jsonl")[0] == 0
    assert {os.fsencode(path) for path in read_csv("a.csv")["path"]} == wanted
    lines = Path("a.jsonl").read_bytes().splitlines()
    assert len(lines) == 5 and {os.fsencode(json.loads(line)["path"]) for line in lines} == wanted
    assert predict("photos", "--out", "a.npz")[0] == 0
    assert {os.fsencode(str(path)) for path in np.load("a.npz")["path"]} == wanted
    code, out, _ = predict("photos")
    assert code == 0 and len(out.splitlines()) == 6  # a line for each, and the heads


def test_a_list_on_standard_input_gives_csv_on_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fashion: np.ndarray
) -> None:
    monkeypatch.chdir(tmp_path)
    save_pictures(fashion[:5], ODD)
    names = [b"photos/" + name for name in reversed(ODD)]
    (tmp_path / "names").write_bytes(b"\0".join(names))
    with (tmp_path / "names").open("rb") as stdin, (tmp_path / "table").open("wb") as stdout:
        done = shell("predict", "--device", "cpu", "-", "--out", "-", stdin=stdin, stdout=stdout)
    assert done.returncode == 0, done.stderr
    assert [os.fsencode(path) for path in read_csv("table")["path"]] == names


def test_broken_pictures_do_not_stop_the_others(predict: Predict, fashion: np.ndarray) -> None:
    save_pictures(fashion[:3], ["1.png", "3.png", "99.png"])
    (PHOTOS / "2.png").write_bytes((PHOTOS / "1.png").read_bytes()[:100])
    for index in range(4, 15):
        (PHOTOS / f"{index}.jpg").write_text("no picture")
    code, out, err = predict("photos", "gone.png", "--out", "labels.csv", "--chunk", "2")
    *report, last = err.splitlines()
    told = [line for line in report if line.startswith("unreadable: ")]
    assert (code, out) == (2, "") and len(told) == 11
    assert told[0].startswith("unreadable: photos/2.png is damaged (")
    assert told[1] == "unreadable: photos/4.jpg is no picture but a text file: convert it to PNG or JPEG"
    assert told[-1] == "unreadable: 3 more"
    assert last == "error: 13 of 16 pictures cannot be read; the others are classified"
    assert [*read_csv("labels.csv")["path"]] == ["photos/1.png", "photos/3.png", "photos/99.png"]


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        ("text.png", "text.png is no picture but a text file: convert it to PNG or JPEG"),
        ("gone.png", "gone.png does not exist; check the name"),
        ("empty", "empty holds no pictures"),
        ("empty.txt", "there is nothing to classify: the list names no pictures"),
        ("gone.txt", "gone.txt does not exist"),
    ],
)
def test_where_nothing_can_be_read_nothing_is_written(names: str, wrong: str, predict: Predict) -> None:
    Path("text.png").write_text("no picture")
    Path("empty.txt").write_text("\n")
    Path("empty").mkdir()
    before = listing(Path())
    check_error(*predict(*names.split(), "--out", "labels.csv"), wrong)
    code, out, err = predict("text.png", "gone.png", "--out", "labels.csv", "--show", "seen.png")
    assert (code, out, len(err.splitlines())) == (2, "", 3)
    assert err.endswith("error: none of the 2 pictures can be read; nothing is written\n")
    assert listing(Path()) == before


def test_a_picture_that_is_classified_is_not_replaced(predict: Predict, fashion: np.ndarray) -> None:
    """``--show`` may name it neither by its place in a folder nor by a link to it."""
    save_pictures(fashion[:2], ["0.png", "1.png"])
    Path("link.png").symlink_to(PHOTOS / "1.png")
    before = listing(Path())
    for show in ("photos/0.png", "link.png"):
        wrong = rf"--show {show} is one of the pictures \(photos/\d.png\): name another file"
        check_error(*predict("photos", "--show", show, "--overwrite"), wrong)
    assert listing(Path()) == before


def test_report_counts_odd_pictures(predict: Predict, fashion: np.ndarray) -> None:
    """Dark objects on white that were not negated, a file of several frames, and pictures of one colour."""
    save_pictures(np.full((2, 90, 60), 255, np.uint8), ["white.png", "paper.png"])
    save_pictures(255 - fashion[:9], [f"{index}.png" for index in range(9)])
    frames = [Image.fromarray(pixels) for pixels in fashion[:2]]
    frames[0].save(PHOTOS / "film.gif", save_all=True, append_images=frames[1:])
    code, _, report = predict("photos", "--invert", "no", "--out", "labels.csv")
    assert code == 0 and "negated   0 of 12 pictures (none; --invert)" in report
    assert "animated  1 file has several frames or pages: the first is classified" in report
    assert "blank     2 of 12 pictures (one colour only: their classes mean nothing)" in report
    assert "mean brightness is " in report


@pytest.mark.parametrize("ending", ["csv", "jsonl", "npy", "npz", "parquet"])
def test_doubtful_answers_are_marked_in_every_format(
    ending: str, predict: Predict, fashion: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the column note, "unsure" instead of a class, and unchanged labels; in the picture of --show a "?"."""
    sheets: list[Sequence[str]] = []
    monkeypatch.setattr(command, "save_montage", lambda path, images, names, answers, overwrite: sheets.append(answers))
    cut = Image.new("L", (90, 120), 255)
    cut.paste(0, (0, 30, 60, 90))
    PHOTOS.mkdir()
    cut.save(PHOTOS / "cut.png")
    Image.fromarray(fashion[0]).save(PHOTOS / "sure.png")
    np.save("one.npy", fashion[1])
    found = {}
    for least in "0", "0.95":
        out = f"{least}.{ending}"
        code, _, report = predict("photos", "one.npy", "--out", out, "--min-confidence", least, "--show", "s.png")
        assert code == 0 and "doubtful  1 of 2 pictures (the column note says why)" in report
        found[least] = {name: column.tolist() for name, column in READERS[f".{ending}"](out).items()}
    for name in "label", "probability", "note":
        assert found["0"][name] == found["0.95"][name]
    probability, names = found["0"]["probability"], found["0"]["class"]
    assert [one.partition(";")[0] for one in found["0"]["note"]] == ["cut at the border", "", ""]
    assert names == [CLASSES[int(label)] for label in found["0"]["label"]]
    wanted = [name if float(chance) >= 0.95 else "unsure" for name, chance in zip(names, probability, strict=True)]
    assert found["0.95"]["class"] == wanted and {*wanted} == {"unsure", "Pullover"}
    marks = "?", "", ""
    shown = [f"{float(chance):.0%}{mark} {name}" for chance, mark, name in zip(probability, marks, wanted, strict=True)]
    assert sheets[1] == shown


def test_min_confidence_needs_names_of_classes(predict: Predict, fashion: np.ndarray) -> None:
    save_weights(Path("mine.h5"), load_weights().arrays, network=LENET5)
    np.save("one.npy", fashion[0])
    wrong = "--min-confidence 0.5 replaces names of classes, and these weights have none"
    check_error(*predict("one.npy", "--weights", "mine.h5", "--min-confidence", "0.5"), wrong)


def test_an_interruption_leaves_no_file(predict: Predict, fashion: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    save_pictures(fashion[:20], [f"{index}.png" for index in range(20)])
    before, calls, real = listing(Path()), [], Classifier.__call__

    def interrupt_third_call(self: Classifier, images: Any) -> np.ndarray:
        calls.append(len(images))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, images)

    monkeypatch.setattr(Classifier, "__call__", interrupt_third_call)
    check_error(*predict("photos", "--chunk", "4", "--out", "labels.parquet.csv", "--show", "seen.png"), "interrupted")
    assert calls == [4, 4, 4] and listing(Path()) == before


# --- commands that README, docs/predict.md and ``predict --help`` show work as they stand, and need few extras


SHOWN = "\n".join([*((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/predict.md")), EPILOG])
DOCUMENTED = [*dict.fromkeys(re.findall(r"^ *python main\.py predict ([^`#\n]*[^`#\s])", SHOWN, re.MULTILINE))]


@pytest.mark.parametrize("options", DOCUMENTED)
def test_documented_command(options: str, predict: Predict, fashion: np.ndarray) -> None:
    Path("photos").mkdir()
    Path("docs").symlink_to(ROOT / "docs")
    for path in ("photo.jpg", "photos/1.png", "photos/2.webp"):
        Image.fromarray(255 - fashion[0]).resize((112, 112)).save(path)
    np.save("images.npy", fashion)
    save_weights(Path("mine.h5"), load_weights().arrays, network=LENET5)
    code, out, report = predict(*shlex.split(options))
    assert code == 0, report
    named = re.findall(r"--(?:out|show) (\S+)", options)
    assert all(Path(name).stat().st_size for name in named) and bool(out) == ("--out" not in options)


def test_documented_commands_are_found() -> None:
    assert len(DOCUMENTED) >= 5 and any("--show" in options for options in DOCUMENTED)


@pytest.mark.parametrize(
    ("package", "command", "wrong"),
    [
        ("PIL", "photo.png", "reading pictures needs Pillow: pip install 'Pillow>="),
        ("PIL", "images.npy --show seen.png", "needs Pillow: pip install 'Pillow>="),
        ("pyarrow", "images.npy --out a.parquet", "--out a.parquet needs pyarrow: pip install 'pyarrow>="),
    ],
)
def test_a_missing_package_is_reported_in_one_line(
    package: str, command: str, wrong: str, predict: Predict, fashion: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save("images.npy", fashion[:3])
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    check_error(*predict(*command.split()), wrong)
    assert predict("images.npy")[0] == 0  # which needs neither
