"""Test ``--device cuda:N`` and ``--devices`` with a driver of its own, which has as many cards as a test wants."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app import cli
from app.cuda.cards import parse_device_name
from app.files.checks import BadValueError

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "tests/support/fake_driver.c"
SELECT = """
import json, os, sys
from app.cuda import cards
from app.base.errors import UserError
answers = []
for wanted in json.loads(sys.argv[1]):
    try:
        listed = wanted.startswith("--devices ")
        found = cards.parse_device_list(wanted[10:]) if listed else cards.select_visible_device(wanted)
        answers.append([str(found) if isinstance(found, str) else {str(card): card.visible for card in found}])
    except UserError as error:
        answers.append(str(error))
    answers.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake libcuda.so.1."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", DRIVER], check=True)
    return folder


def asked(driver: Path, wanted: list[str], **environment: str) -> list[object]:
    """Select each in turn in a new process; return [device] or the error, and then CUDA_VISIBLE_DEVICES."""
    clean = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    variables = clean | {"LD_LIBRARY_PATH": str(driver), "FAKE_CARDS": "3"} | environment
    command = [sys.executable, "-c", SELECT, json.dumps(wanted)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answers: list[object] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize(
    ("listed", "number", "visible"),
    [(None, 2, "2"), ("2,0", 0, "2"), ("GPU-1, GPU-2", 1, "GPU-2"), ("MIG-a,MIG-b", 1, "MIG-b"), ("1,-1,2", 0, "1")],
)
def test_the_card_of_a_number(driver: Path, listed: str | None, number: int, visible: str) -> None:
    variables = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert asked(driver, [f"cuda:{number}"], **variables) == [["cuda"], visible]


def test_a_card_that_is_not_there(driver: Path) -> None:
    """The environment stays as it was, for whoever catches the error."""
    wrong = "--device cuda:3: there are 3 GPUs, cuda:0 to cuda:2"
    assert asked(driver, ["cuda:3"]) == [wrong, None]
    for listed in ("1,-1,2", "1,7,2"):
        wrong = "--device cuda:4: there is one GPU, cuda:0"
        assert asked(driver, ["cuda:4"], CUDA_VISIBLE_DEVICES=listed) == [wrong, listed]
    none = "the NVIDIA driver sees no device (CUDA_VISIBLE_DEVICES may hide it); use --device cpu, or auto"
    for listed in ("", "-1", "9"):
        answer, after = asked(driver, ["cuda:0"], CUDA_VISIBLE_DEVICES=listed)
        assert str(answer).startswith(f"--device cuda:0: {none}") and after == listed


def test_other_devices_start_nothing(driver: Path) -> None:
    assert asked(driver, ["auto", "cuda", "cpu"], FAKE_CRASH="1") == [["auto"], None, ["cuda"], None, ["cpu"], None]


@pytest.mark.parametrize(("cards", "contexts"), [("3", 1), ("0", 0)])
def test_the_context_is_made_beside_other_work(driver: Path, cards: str, contexts: int) -> None:
    program = (
        "import ctypes, threading\n"
        "from app.cuda import cards\n"
        "cards.create_context_in_background()\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'context']\n"
        "print(ctypes.c_int.in_dll(ctypes.CDLL('libcuda.so.1'), 'contexts').value)"
    )
    variables = os.environ | {"LD_LIBRARY_PATH": str(driver), "FAKE_CARDS": cards}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{contexts}\n", "")


@pytest.mark.parametrize(
    ("command", "started", "code"),
    [
        *(("", 1, 0), ("--device cuda", 1, 0), ("--device cpu", 0, 0), ("networks", 0, 0)),
        *(("predict missing.npy", 1, 2), ("predict missing.npy --device cpu", 0, 2)),
    ],
)
def test_who_makes_it(command: str, started: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(cli, "create_context_in_background", lambda: calls.append(None))
    monkeypatch.setattr(cli, "_import_main_job", lambda _: lambda *_: 0)
    assert cli.main(command.split()) == code
    assert len(calls) == started


def test_too_late(driver: Path) -> None:
    """CUDA reads the variable only once."""
    late = "--device cuda:0: CUDA has started in this process, which can choose no card any more: start the process"
    answers = asked(driver, ["cuda:1", "cuda:0"])
    assert answers[:2] == [["cuda"], "1"] and str(answers[2]).startswith(late) and answers[3] == "1"


@pytest.mark.parametrize(
    ("listed", "text", "cards"),
    [
        (None, "all", {"cuda:0": "0", "cuda:1": "1", "cuda:2": "2"}),
        (None, "2,0", {"cuda:2": "2", "cuda:0": "0"}),
        ("GPU-2,0,9,1", "all", {"cuda:0": "GPU-2", "cuda:1": "0"}),
        ("MIG-a,MIG-b", "all", {"cuda:0": "MIG-a", "cuda:1": "MIG-b"}),
    ],
)
def test_a_card_for_each_process(driver: Path, listed: str | None, text: str, cards: dict[str, str]) -> None:
    """This process starts no driver: it may still choose."""
    variables = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert asked(driver, [f"--devices {text}", "cuda:0"], **variables)[::2] == [[cards], ["cuda"]]


def test_wrong_lists_of_cards(driver: Path) -> None:
    wrong = {
        "0,x": "--devices 0,x: give all, or numbers of GPUs, as in 0,2",
        "": "--devices : give all, or numbers of GPUs, as in 0,2",
        "0,-1": "--devices 0,-1: give all, or numbers of GPUs, as in 0,2",
        "0,1,00": "--devices 0,1,00: cuda:0 is named twice, name it once",
        "0,5": "--devices 0,5: no cuda:5, there are 3 GPUs, cuda:0 to cuda:2",
    }
    assert asked(driver, [f"--devices {text}" for text in wrong])[::2] == [*wrong.values()]
    none = "--devices all: the NVIDIA driver sees no device (CUDA_VISIBLE_DEVICES may hide it); leave it out"
    assert str(asked(driver, ["--devices all"], FAKE_CARDS="0")[0]).startswith(none)
    crashed = "--devices all: the NVIDIA driver does not start: its process was ended by signal 6 (Aborted)"
    assert str(asked(driver, ["--devices all"], FAKE_CRASH="1")[0]).startswith(crashed)
    missing = "--devices all: no NVIDIA driver library (libcuda.so.1) is installed; leave it out to use the CPU"
    if not shutil.which("nvidia-smi"):
        assert asked(driver, ["--devices all"], LD_LIBRARY_PATH="")[0] == missing


@pytest.mark.parametrize("text", ["auto", "cpu", "cuda", "cuda:0", "cuda:15"])
def test_names(text: str) -> None:
    assert parse_device_name(text) == text


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:N", "cuda:-1", "cuda:01", "cuda:1 ", "cpu:1", "cuda:١"])
def test_no_names(text: str) -> None:
    with pytest.raises(BadValueError, match="is none of auto, cuda, cuda:N, cpu"):
        parse_device_name(text)
