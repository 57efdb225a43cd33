"""Test ``predict -``: it answers each name on standard input by a line of JSON, before it reads the next name."""

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
from tests.images.predict.test_predict_pictures import ODD, save_pictures
from tests.support.shell import COMMAND, INTERRUPTIBLE, ROOT

GPU = pytest.param("--device cuda", marks=pytest.mark.gpu)
SetStdin = Callable[[bytes], None]


@pytest.fixture
def set_stdin(monkeypatch: pytest.MonkeyPatch) -> SetStdin:
    """Return a function that replaces standard input by these bytes."""
    return lambda names: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(names)))


def parse_json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("where", ["--device cpu", GPU])
@pytest.mark.parametrize("options", ["", "--top 2 --logits --invert yes --network k7"])
def test_answers_are_those_of_all_pictures_at_once(
    options: str, where: str, predict: Predict, set_stdin: SetStdin, fashion: np.ndarray
) -> None:
    save_pictures(fashion[:20], [f"{index}.png" for index in range(20)])
    assert predict("photos", "--out", "a.jsonl", *options.split(), where=where)[0] == 0
    wanted = parse_json_lines(Path("a.jsonl").read_text())
    set_stdin("".join(f"./photos/{index}.png\r\n\n" for index in range(20)).encode())
    code, out, report = predict("-", *options.split(), where=where)
    assert code == 0 and ": 20 images in " in report
    assert parse_json_lines(out) == [{**answer, "path": f"./{answer['path']}"} for answer in wanted]


def test_lines_fit_their_schemas(predict: Predict, set_stdin: SetStdin, fashion: np.ndarray) -> None:
    save_pictures(fashion[:5], ODD)
    names = [b"photos/" + name for name in ODD]
    set_stdin(b"\0".join([*names, b"gone.png", b"photos"]))
    code, out, err = predict("-", "--format", "jsonl")
    *answers, gone, folder = parse_json_lines(out)
    assert [os.fsencode(answer["path"]) for answer in answers] == names
    for check, good in ((check_for_type(Answer), answers), (check_for_type(Unreadable), [gone, folder])):
        assert [check(line) for line in good] == good
        with pytest.raises(BadValueError):
            check({**good[0], "path": 1})
    assert gone == {"path": "gone.png", "error": "gone.png does not exist; check the name"}
    assert code == 2 and err.endswith("error: 2 of 7 pictures cannot be read: their lines say why\n")


def test_no_names_are_no_error(predict: Predict, set_stdin: SetStdin) -> None:
    set_stdin(b"\n")
    assert predict("-") == (0, "", "")


@pytest.fixture
def predict_process(predict: Predict, fashion: np.ndarray) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command as a process, in a folder with photos/0.png and photos/1.png."""
    save_pictures(fashion[:2], ["0.png", "1.png"])
    settings: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    settings |= {"env": os.environ | {"PYTHONUNBUFFERED": ""}, "preexec_fn": INTERRUPTIBLE}  # it buffers, as by default
    command = [*COMMAND, "predict", "-", "--device", "cpu"]
    with subprocess.Popen(command, bufsize=0, start_new_session=True, **settings) as process:
        yield process
        process.kill()


def ask(process: subprocess.Popen[bytes], *pieces: bytes) -> dict[str, Any]:
    """Write a line in pieces; return the answer, which must come after the last piece, while the pipe stays open."""
    assert process.stdin is not None and process.stdout is not None
    for piece in pieces:
        assert not select.select([process.stdout], [], [], 0.1)[0], "an answer before the question"
        process.stdin.write(piece)
    assert select.select([process.stdout], [], [], 60)[0], "no answer"
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def test_each_name_is_answered_while_the_pipe_stays_open(predict_process: subprocess.Popen[bytes]) -> None:
    assert ask(predict_process, b"photos/0.png\n")["class"] == "Ankle boot"
    assert "does not exist" in ask(predict_process, b"gone.png\n")["error"]
    assert ask(predict_process, b"photos/", b"1.png", b"\n")["class"] == "Pullover"
    out, err = predict_process.communicate(b"photos/0.png", timeout=60)  # the last line has no end
    assert json.loads(out)["label"] == 9
    assert predict_process.returncode == 2 and b"error: 1 of 4 pictures cannot be read" in err


def test_closed_output_ends_it_without_a_message(predict_process: subprocess.Popen[bytes]) -> None:
    ask(predict_process, b"photos/0.png\n")
    stdin, stdout, stderr = predict_process.stdin, predict_process.stdout, predict_process.stderr
    assert stdin is not None and stdout is not None and stderr is not None
    stdout.close()
    stdin.write(b"photos/0.png\n")
    assert (predict_process.wait(60), stderr.read()) == (141, b"")


def test_ctrl_c_ends_it_between_two_names(predict_process: subprocess.Popen[bytes]) -> None:
    ask(predict_process, b"photos/0.png\n")
    predict_process.send_signal(signal.SIGINT)
    assert predict_process.wait(60) == 2 and predict_process.stderr is not None
    assert re.fullmatch(rb"error: interrupted.*\n", predict_process.stderr.read())


def test_documented_example_in_javascript(predict: Predict, fashion: np.ndarray) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    save_pictures(fashion[:2], ["0.png", "1.png"])
    (example,) = re.findall(r"```js\n(.*?)```", (ROOT / "docs/predict.md").read_text(encoding="utf-8"), re.DOTALL)
    here = json.dumps([*COMMAND, "predict", "-", "--device", "cpu"])[1:].replace(", ", ", [", 1)
    code = example.replace('"python", ["main.py", "predict", "-"]', here)
    assert code != example
    done = subprocess.run([node, "-e", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"photos/0.png Ankle boot 0\.9\d+\nphotos/1.png Pullover 0\.9\d+\n", done.stdout)
