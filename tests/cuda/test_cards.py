"""Test ``--device cuda:N`` and ``--devices`` with a simulated CUDA driver, which has any number of GPUs."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from app import cli
from app.cuda.cards import parse_device_name
from app.files.checks import BadValueError
from tests.support.shell import ROOT, python

DRIVER = ROOT / "tests/support/fake_driver.c"
SELECT = """
import json, os, sys
from app.cuda import cards
from app.base.errors import UserError
for environment, *devices in json.loads(sys.argv[1]):
    answers = []
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    os.environ |= environment
    for wanted in devices:
        try:
            listed = wanted.startswith("--devices ")
            found = cards.parse_device_list(wanted[10:]) if listed else cards.select_visible_device(wanted)
            answers.append([str(found) if isinstance(found, str) else {str(card): card.visible for card in found}])
        except UserError as error:
            answers.append(str(error))
        answers.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
    print(json.dumps(answers), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the simulated driver; return the folder of its libcuda.so.1."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", DRIVER], check=True)
    return folder


def select_devices(driver: Path, *cases: tuple[dict[str, str], *tuple[str, ...]]) -> list[list[object]]:
    """Select devices one after another, in a new process for each case.

    cases: environment variables, then the devices. Return for each case a list: for each device, [result] or the error,
    and then CUDA_VISIBLE_DEVICES.
    """
    clean = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    variables = clean | {"LD_LIBRARY_PATH": str(driver), "FAKE_CARDS": "3"}
    done = python(SELECT, json.dumps(cases), env=variables)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def visible_devices(names: str | None) -> dict[str, str]:
    return {} if names is None else {"CUDA_VISIBLE_DEVICES": names}


def test_a_number_selects_the_visible_gpu(driver: Path) -> None:
    cases = (
        *((None, 2, "2"), ("2,0", 0, "2"), ("GPU-1, GPU-2", 1, "GPU-2")),
        *(("MIG-a,MIG-b", 1, "MIG-b"), ("1,-1,2", 0, "1")),
    )
    found = select_devices(driver, *((visible_devices(names), f"cuda:{number}") for names, number, _ in cases))
    assert found == [[["cuda"], visible] for *_, visible in cases]


def test_a_missing_gpu_is_an_error(driver: Path) -> None:
    """The environment stays unchanged, for callers that catch the error."""
    one = "there is one GPU, cuda:0"
    none = "the NVIDIA driver sees no device (CUDA_VISIBLE_DEVICES may hide it); use --device cpu, or auto"
    cases = (
        *((None, 3, "there are 3 GPUs, cuda:0 to cuda:2"), ("1,-1,2", 4, one), ("1,7,2", 4, one)),
        *((hidden, 0, none) for hidden in ("", "-1", "9")),
    )
    found = select_devices(driver, *((visible_devices(names), f"cuda:{number}") for names, number, _ in cases))
    for (names, number, reason), (answer, after) in zip(cases, found, strict=True):
        assert str(answer).startswith(f"--device cuda:{number}: {reason}") and after == names


def test_devices_without_a_number_start_no_driver(driver: Path) -> None:
    (found,) = select_devices(driver, ({"FAKE_CRASH": "1"}, "auto", "cuda", "cpu"))
    assert found == [["auto"], None, ["cuda"], None, ["cpu"], None]


@pytest.mark.parametrize(("cards", "contexts"), [("3", 1), ("0", 0)])
def test_the_context_is_created_in_the_background(driver: Path, cards: str, contexts: int) -> None:
    program = (
        "import ctypes, threading\n"
        "from app.cuda import cards\n"
        "cards.create_context_in_background()\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'context']\n"
        "print(ctypes.c_int.in_dll(ctypes.CDLL('libcuda.so.1'), 'contexts').value)"
    )
    done = python(program, env=os.environ | {"LD_LIBRARY_PATH": str(driver), "FAKE_CARDS": cards})
    assert (done.stdout, done.stderr) == (f"{contexts}\n", "")


@pytest.mark.parametrize(
    ("command", "started", "code"),
    [
        *(("", 1, 0), ("--device cuda", 1, 0), ("--device cpu", 0, 0), ("networks", 0, 0)),
        *(("predict missing.npy", 1, 2), ("predict missing.npy --device cpu", 0, 2)),
    ],
)
def test_commands_create_the_context(command: str, started: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(cli, "create_context_in_background", lambda: calls.append(None))
    monkeypatch.setattr(cli, "_import_main_job", lambda _: lambda *_: 0)
    assert cli.main(command.split()) == code
    assert len(calls) == started


def test_selecting_after_cuda_started_is_an_error(driver: Path) -> None:
    """CUDA reads CUDA_VISIBLE_DEVICES only once."""
    late = "--device cuda:0: CUDA has started in this process, which can choose no card any more: start the process"
    (answers,) = select_devices(driver, ({}, "cuda:1", "cuda:0"))
    assert answers[:2] == [["cuda"], "1"] and str(answers[2]).startswith(late) and answers[3] == "1"
    program = (
        "from app.cuda import cards\ncards.select_visible_device('cuda:1')\n"
        "try: cards.select_visible_device('cuda:0')\nexcept Exception: print(cards.original_device_number(0))"
    )
    done = python(program, env=os.environ | {"LD_LIBRARY_PATH": str(driver), "FAKE_CARDS": "3"})
    assert (done.stdout, done.stderr) == ("1\n", ""), "the first selection stays in force"


def test_device_lists_name_visible_gpus(driver: Path) -> None:
    """The process itself starts no driver, so it can still select a GPU."""
    cases = (
        (None, "all", {"cuda:0": "0", "cuda:1": "1", "cuda:2": "2"}),
        (None, "2,0", {"cuda:2": "2", "cuda:0": "0"}),
        ("GPU-2,0,9,1", "all", {"cuda:0": "GPU-2", "cuda:1": "0"}),
        ("MIG-a,MIG-b", "all", {"cuda:0": "MIG-a", "cuda:1": "MIG-b"}),
    )
    found = select_devices(
        driver, *((visible_devices(names), f"--devices {text}", "cuda:0") for names, text, _ in cases)
    )
    assert [answers[::2] for answers in found] == [[[cards], ["cuda"]] for *_, cards in cases]


def test_wrong_device_lists_are_refused(driver: Path) -> None:
    wrong = {
        "0,x": "--devices 0,x: give all, or numbers of GPUs, as in 0,2",
        "": "--devices : give all, or numbers of GPUs, as in 0,2",
        "0,-1": "--devices 0,-1: give all, or numbers of GPUs, as in 0,2",
        "0,1,00": "--devices 0,1,00: cuda:0 is named twice, name it once",
        "0,5": "--devices 0,5: no cuda:5, there are 3 GPUs, cuda:0 to cuda:2",
    }
    reasons = {  # environment → error of --devices all
        "FAKE_CARDS=0": "the NVIDIA driver sees no device (CUDA_VISIBLE_DEVICES may hide it); leave it out",
        "FAKE_CRASH=1": "the NVIDIA driver does not start: its process was ended by signal 6 (Aborted)",
        "LD_LIBRARY_PATH=": "no NVIDIA driver library (libcuda.so.1) is installed; leave it out to use the CPU",
    }
    if shutil.which("nvidia-smi"):
        del reasons["LD_LIBRARY_PATH="]
    variables = [dict([setting.split("=")]) for setting in reasons]
    lists, *others = select_devices(
        driver, ({}, *(f"--devices {text}" for text in wrong)), *((each, "--devices all") for each in variables)
    )
    assert lists[::2] == [*wrong.values()]
    for reason, (answer, _) in zip(reasons.values(), others, strict=True):
        assert str(answer).startswith(f"--devices all: {reason}")


@pytest.mark.parametrize("text", ["auto", "cpu", "cuda", "cuda:0", "cuda:15"])
def test_device_names_are_accepted(text: str) -> None:
    assert parse_device_name(text) == text


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:N", "cuda:-1", "cuda:01", "cuda:1 ", "cpu:1", "cuda:١"])
def test_wrong_device_names_are_refused(text: str) -> None:
    with pytest.raises(BadValueError, match="is none of auto, cuda, cuda:N, cpu"):
        parse_device_name(text)
