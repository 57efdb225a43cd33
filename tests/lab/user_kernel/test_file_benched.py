"""Test ``bench FILE.cu``: a user's kernel among the ladder's, and a child process that crashes or hangs."""

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from app.base.errors import UserError
from app.cli import main
from app.cuda.device import why_no_gpu
from app.lab.bench.compiling import WrongResult
from app.lab.bench.standing import describe_rank
from app.lab.user_kernel import child, timing
from app.lab.user_kernel.child import CardProcess, LostError
from tests.lab.conftest import RunBench
from tests.support.shell import Refuses


def test_a_users_kernel_is_compared_with_all_steps(answers: dict[str, Any], mine: Path, run_bench: RunBench) -> None:
    code, text, found = run_bench(f"{mine} --batch 20")
    assert code == 1  # the fake card has a wrong kernel
    assert [table["item"] for table in found["tables"]] == ["conv1", "conv2"] and found["whole_program"] == []
    for table in found["tables"]:
        rows = [row for row in table["rows"] if row["kind"] == "file"]
        assert [(row["name"], row["dtype"], row["ms"], row["error"]) for row in rows] == [
            ("mine.cu", dtype, 2.5, 0.25) for dtype in ("float32", "float16")
        ]
        assert len([row for row in table["rows"] if row["dtype"] == "float32"]) > 10
    words = " ".join(text.split())
    assert "mine.cu on conv1, fp32: 2.5000 ms, place 4 of " in words
    assert "it beats 04 constant (4.0000 ms, 1.60 of its time) and " in words
    assert "next is 02 direct (2.0000 ms, 0.80 of its time), first is 00 cublas" in words
    assert "neither arithmetic nor memory" in words
    assert rows[0]["note"] == "clock 1,755 to 1,980 MHz, cold L2"


def test_a_wrong_kernel_is_not_timed(answers: dict[str, Any], mine: Path, run_bench: RunBench) -> None:
    answers["check_user_case"] = "image 0, map 0: found 1"
    code, text, found = run_bench(f"{mine} --batch 20 --only direct")
    words = " ".join(text.split())
    assert (
        code == 1 and "mine.cu on conv2, fp16: WRONG: wrong on C3 13x10 M17 K3 S1, bias, relu, float32: image" in words
    )
    assert {row["ms"] for table in found["tables"] for row in table["rows"] if row["kind"] == "file"} == {None}


def test_a_kernel_that_cannot_be_checked_is_not_timed(answers: dict[str, Any], mine: Path, run_bench: RunBench) -> None:
    answers["check_user_case"] = UserError("line 3: grid is 0")
    code, _, found = run_bench(f"{mine} --batch 20 --only direct,constant")
    rows = [row for table in found["tables"] for row in table["rows"] if row["kind"] == "file"]
    assert code == 0 and {(row["ms"], row["reason"]) for row in rows} == {(None, "line 3: grid is 0")}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WrongResult("wrong: image 3"), "WRONG: wrong: image 3"),
        (LostError("the card stopped it: an illegal address"), "WRONG: the card stopped it"),
        (UserError("line 3: grid is 0"), "not timed: line 3: grid is 0"),
    ],
)
def test_errors_of_the_child_process_are_reasons(
    error: Exception, reason: str, answers: dict[str, Any], mine: Path, run_bench: RunBench
) -> None:
    answers["time_in_process"] = error
    code, text, _ = run_bench(f"{mine} --batch 20 --only direct")
    assert code == int(reason.startswith("WRONG")) and reason in " ".join(text.split())
    assert ("(on another layer)" in text) == isinstance(error, LostError)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ("FILE --peers", r"--peers does not go with a file of your own \(.*mine.cu\): leave it out"),
        ("FILE --save-tuning", "--save-tuning does not go with"),
        ("--as direct", "--as direct is for a file of your own"),
        ("none.cu", "none.cu does not exist"),
        ("FILE --network mlp", "mine.cu is a conv kernel, and network mlp has no layer for it"),
        ("FILE --as pool:direct", r"mine.cu:\d+: kernel and as"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: str, pattern: str, mine: Path, refuses: Refuses) -> None:
    refuses(["bench", *options.replace("FILE", str(mine)).split()], pattern)


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
def test_bench_without_a_gpu_is_refused(mine: Path, refuses: Refuses) -> None:
    refuses(["bench", mine], "bench needs an NVIDIA GPU: ")


def test_standing_alone_and_before_slower_steps() -> None:
    row = {"kind": "file", "name": "mine.cu", "dtype": "float32", "step": None, "ms": 2.0, "wrong": False, "reason": ""}
    rates = {"tflops": 1.0, "gbytes_per_s": 5.0, "share": 0.9, "limit": "memory"}
    table: Any = {"item": "conv1", "rows": [{**row, "rates": rates}]}
    (text,) = describe_rank(table)
    assert text.startswith(
        "mine.cu on conv1, fp32: 2.0000 ms, place 1 of 1; every output is right; the bound is 1.8000 ms"
    )
    assert text.endswith("90% of its time: memory bounds it.")
    table["rows"] += [{**row, "kind": "kernel", "step": step, "ms": 3.0} for step in (7, 8)]
    assert "it beats 07 mine.cu (3.0000 ms, 1.50 of its time) and 1 slower step; the" in describe_rank(table)[0]


def _upper_case(text: str) -> str:
    return text.upper()


def _raise_wrong_result() -> None:
    raise WrongResult("first\nsecond")


def _raise_user_error() -> None:
    raise UserError("no")


class CUDARuntimeError(RuntimeError):
    """Has the name by which CuPy's error is recognised."""

    status = 46


def _raise_busy_card() -> None:
    raise CUDARuntimeError("all devices are busy")


def _crash() -> None:
    signal.raise_signal(signal.SIGSEGV)


def _sleep() -> None:
    time.sleep(100)


def test_the_child_process_answers_or_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "STARTING", 10.0)
    with CardProcess() as process:
        assert process.call(_upper_case, "right") == "RIGHT"
        with pytest.raises(WrongResult, match="first second"):
            process.call(_raise_wrong_result)
        with pytest.raises(UserError, match="no"):
            process.call(_raise_user_error)
        with pytest.raises(UserError, match="all devices are busy: wait for the other program"):
            process.call(_raise_busy_card)
        with pytest.raises(LostError, match="it ended by TypeError"):
            process.call(_upper_case)
        assert process._child is None  # its context accepts no more work
        with pytest.raises(LostError, match="it crashed the process that ran it"):
            process.call(_crash)
        assert process.call(_upper_case, "again") == "AGAIN"
        monkeypatch.setattr(child, "SECONDS", 0.5)
        with pytest.raises(LostError, match="come to an end: stopped after 1 s"):
            process.call(_sleep, times=2)


@pytest.mark.gpu
def test_bench_file_on_the_card(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--batch", "2000", "--only", "direct,shared-tile", "--json", "-"]
    assert main(["bench", str(mine), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    for table in found["tables"]:
        rows = {row["name"]: row for row in table["rows"] if row["dtype"] == "float32"}
        assert rows["mine.cu"]["ms"] > 0 and rows["direct"]["ms"] > 0  # which is faster, a test cannot say
    monkeypatch.setattr(child, "SECONDS", 5.0)
    text = mine.read_text()
    for old, new, reason in (
        ("REAL sum = 0;", "REAL sum = images > 150 ? REAL(((const float *)16)[0]) : REAL(0);", "the card stopped it"),
        ("REAL sum = 0;", "REAL sum = 0; while (images > 150) sum += clock();", "does not come to an end"),
        ("REAL sum = 0;", "REAL sum = images > 150;", "wrong: image 0, element 0"),
    ):
        mine.write_text(text.replace(old, new))
        assert main(["bench", str(mine), *options]) == 1
        timed = [row for table in json.loads(capsys.readouterr().out)["tables"] for row in table["rows"]]
        assert all(re.search(reason, row["reason"]) for row in timed if row["kind"] == "file")
        assert any(row["ms"] for row in timed if row["name"] == "direct")
    assert timing.FILE == "file"
