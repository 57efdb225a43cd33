"""However a process ends that has a resident kernel, nothing of it is left on the card two seconds later."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from app.base.clock import Deadline
from app.cuda.nvml import UnavailableError, current_bus_id, open_nvml
from tests.support.shell import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
PROGRAM = """
import sys

import numpy as np

from app.engine.classifier import Classifier

classifier, image = Classifier(device="cuda", precision="fp16", resident=True), np.zeros((28, 28), np.uint8)
for _ in range(20):
    classifier(image)
if sys.argv[1] == "raises":
    raise RuntimeError("on purpose")
while sys.argv[1] == "goes on":
    classifier(image)
    if _:
        print("ready", flush=True)
        _ = 0
"""
SECONDS = 2.0
Usage = tuple[int, set[int]]  # the card's utilisation in percent, and the processes that have a context on it


def _by_nvml() -> Usage:
    with open_nvml(current_bus_id) as device:
        library, handle = device._library, device._handle
        processes = library.nvmlDeviceGetComputeRunningProcesses(handle)
        return library.nvmlDeviceGetUtilizationRates(handle).gpu, {process.pid for process in processes}


def _by_nvidia_smi() -> Usage:
    def asked(what: str) -> list[int]:
        command = ["nvidia-smi", f"--query-{what}", "--format=csv,noheader,nounits", f"--id={current_bus_id()}"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
        return [int(line) for line in said.splitlines() if line.strip().isdigit()]

    return (*asked("gpu=utilization.gpu"), -1)[0], set(asked("compute-apps=pid"))


@pytest.fixture
def usage() -> Callable[[], Usage]:
    """Reads what uses the card. Without a way to see a resident kernel, the test is skipped."""
    with suppress(UnavailableError):
        _by_nvml()
        return _by_nvml
    if shutil.which("nvidia-smi") is None:
        pytest.skip("neither NVML nor nvidia-smi tells what uses the card")
    return _by_nvidia_smi


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition comes true within so many seconds."""
    deadline = Deadline(seconds)
    while not condition():
        if deadline.is_over:
            return False
    return True


def start(what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, what]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_signal_leaves_nothing(usage: Callable[[], Usage], number: signal.Signals) -> None:
    with start("goes on") as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "ready\n", child.stderr
            if not until(lambda: usage()[0] > 0, 5):
                pytest.skip("the card does not tell its utilisation")
            child.send_signal(number)
            assert child.wait(timeout=30) == -number
        finally:
            child.kill()
    assert until(lambda: usage()[0] == 0, SECONDS), usage()
    assert child.pid not in usage()[1]


@pytest.mark.parametrize(("how", "code"), [("raises", 1), ("ends without close()", 0)])
def test_an_end_leaves_nothing(usage: Callable[[], Usage], how: str, code: int) -> None:
    with start(how) as child:
        _, said = child.communicate(timeout=120)
    assert child.returncode == code and ("RuntimeError: on purpose" in said) == bool(code), said
    assert until(lambda: usage()[0] == 0, SECONDS), usage()
    assert child.pid not in usage()[1]
