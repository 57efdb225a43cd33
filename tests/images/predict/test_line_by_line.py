"""``predict -``: every name on standard input is answered by a line of JSON before the next one is asked."""

import io
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.files.checks import BadValueError
from app.records.classify import Answer, Unreadable
from app.records.derive import check_for_type
from tests.images.predict.conftest import Predict
from tests.images.predict.test_predict_pictures import ODD, save
from tests.support.shell import COMMAND, INTERRUPTIBLE, ROOT

GPU = pytest.param("--device cuda", marks=pytest.mark.gpu)
Given = Callable[[bytes], None]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Sets what standard input holds."""
    return lambda names: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(names)))


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("where", ["--device cpu", GPU])
@pytest.mark.parametrize("options", ["", "--top 2 --logits --invert yes --network k7"])
def test_answers_are_those_of_all_pictures_at_once(
    options: str, where: str, predict: Predict, given: Given, fashion: np.ndarray
) -> None:
    save(fashion[:20], [f"{index}.png" for index in range(20)])
    assert predict("photos", "--out", "a.jsonl", *options.split(), where=where)[0] == 0
    wanted = lines(Path("a.jsonl").read_text())
    given("".join(f"./photos/{index}.png\r\n\n" for index in range(20)).encode())
    code, out, report = predict("-", *options.split(), where=where)
    assert code == 0 and ": 20 images in " in report
    assert lines(out) == [{**answer, "path": f"./{answer['path']}"} for answer in wanted]


def test_lines_are_as_their_records_say(predict: Predict, given: Given, fashion: np.ndarray) -> None:
    save(fashion[:5], ODD)
    names = [b"photos/" + name for name in ODD]
    given(b"\0".join([*names, b"gone.png", b"photos"]))
    code, out, err = predict("-", "--format", "jsonl")
    *answers, gone, folder = lines(out)
    assert [os.fsencode(answer["path"]) for answer in answers] == names
    for check, good in ((check_for_type(Answer), answers), (check_for_type(Unreadable), [gone, folder])):
        assert [check(line) for line in good] == good
        with pytest.raises(BadValueError):
            check({**good[0], "path": 1})
    assert gone == {"path": "gone.png", "error": "gone.png does not exist; check the name"}
    assert code == 2 and err.endswith("error: 2 of 7 pictures cannot be read: their lines say why\n")


def test_no_names_are_no_error(predict: Predict, given: Given) -> None:
    given(b"\n")
    assert predict("-") == (0, "", "")


@pytest.fixture
def other_side(predict: Predict, fashion: np.ndarray) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process of its own, in a folder with photos/0.png and photos/1.png."""
    save(fashion[:2], ["0.png", "1.png"])
    settings: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    settings |= {"env": os.environ | {"PYTHONUNBUFFERED": ""}, "preexec_fn": INTERRUPTIBLE}  # it buffers, as by default
    command = [*COMMAND, "predict", "-", "--device", "cpu"]
    with subprocess.Popen(command, bufsize=0, start_new_session=True, **settings) as process:
        yield process
        process.kill()


def asked(process: subprocess.Popen[bytes], *pieces: bytes) -> dict[str, Any]:
    """Write pieces of a line, and return the line that answers it. Nothing more is written or closed meanwhile."""
    assert process.stdin is not None and process.stdout is not None
    for piece in pieces:
        assert not select.select([process.stdout], [], [], 0.1)[0], "an answer before the question"
        process.stdin.write(piece)
    assert select.select([process.stdout], [], [], 60)[0], "no answer"
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def test_each_name_is_answered_while_the_pipe_stays_open(other_side: subprocess.Popen[bytes]) -> None:
    assert asked(other_side, b"photos/0.png\n")["class"] == "Ankle boot"
    assert "does not exist" in asked(other_side, b"gone.png\n")["error"]
    assert asked(other_side, b"photos/", b"1.png", b"\n")["class"] == "Pullover"
    out, err = other_side.communicate(b"photos/0.png", timeout=60)  # the last line has no end
    assert json.loads(out)["label"] == 9
    assert other_side.returncode == 2 and b"error: 1 of 4 pictures cannot be read" in err


def test_where_nobody_reads_the_answers_it_ends_in_silence(other_side: subprocess.Popen[bytes]) -> None:
    asked(other_side, b"photos/0.png\n")
    assert other_side.stdout is not None and other_side.stdin is not None and other_side.stderr is not None
    other_side.stdout.close()
    other_side.stdin.write(b"photos/0.png\n")
    assert (other_side.wait(60), other_side.stderr.read()) == (141, b"")


def test_an_interruption_ends_it_between_two_names(other_side: subprocess.Popen[bytes]) -> None:
    asked(other_side, b"photos/0.png\n")
    other_side.send_signal(signal.SIGINT)
    assert other_side.wait(60) == 2 and other_side.stderr is not None
    assert re.fullmatch(rb"error: interrupted.*\n", other_side.stderr.read())


def test_the_example_in_another_language(predict: Predict, fashion: np.ndarray) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    save(fashion[:2], ["0.png", "1.png"])
    (example,) = re.findall(r"```js\n(.*?)```", (ROOT / "docs/predict.md").read_text(encoding="utf-8"), re.DOTALL)
    here = json.dumps([*COMMAND, "predict", "-", "--device", "cpu"])[1:].replace(", ", ", [", 1)
    code = example.replace('"python", ["main.py", "predict", "-"]', here)
    assert code != example
    done = subprocess.run([node, "-e", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"photos/0.png Ankle boot 0\.9\d+\nphotos/1.png Pullover 0\.9\d+\n", done.stdout)
