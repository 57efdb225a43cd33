"""Test that two seconds after a process with a resident kernel has ended, nothing of it runs on the GPU."""

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
Usage = tuple[int, set[int]]  # the GPU's utilisation in percent, and the ids of the processes with a context on it


def _by_nvml() -> Usage:
    with open_nvml(current_bus_id) as device:
        library, handle = device._library, device._handle
        processes = library.nvmlDeviceGetComputeRunningProcesses(handle)
        return library.nvmlDeviceGetUtilizationRates(handle).gpu, {process.pid for process in processes}


def _by_nvidia_smi() -> Usage:
    def query(what: str) -> list[int]:
        command = ["nvidia-smi", f"--query-{what}", "--format=csv,noheader,nounits", f"--id={current_bus_id()}"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
        return [int(line) for line in said.splitlines() if line.strip().isdigit()]

    return (*query("gpu=utilization.gpu"), -1)[0], set(query("compute-apps=pid"))


@pytest.fixture
def usage() -> Callable[[], Usage]:
    """Return a function that reads the GPU's usage; skip the test if neither NVML nor nvidia-smi is available."""
    with suppress(UnavailableError):
        _by_nvml()
        return _by_nvml
    if shutil.which("nvidia-smi") is None:
        pytest.skip("neither NVML nor nvidia-smi tells what uses the card")
    return _by_nvidia_smi


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition is true; return False if it is still false after this many seconds."""
    deadline = Deadline(seconds)
    while not condition():
        if deadline.is_over:
            return False
    return True


def start_program(what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, what]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_the_kernel(usage: Callable[[], Usage], number: signal.Signals) -> None:
    with start_program("goes on") as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "ready\n", child.stderr
            if not wait_until(lambda: usage()[0] > 0, 5):
                pytest.skip("the card does not tell its utilisation")
            child.send_signal(number)
            assert child.wait(timeout=30) == -number
        finally:
            child.kill()
    assert wait_until(lambda: usage()[0] == 0, SECONDS), usage()
    assert child.pid not in usage()[1]


@pytest.mark.parametrize(("how", "code"), [("raises", 1), ("ends without close()", 0)])
def test_the_end_of_the_process_ends_the_kernel(usage: Callable[[], Usage], how: str, code: int) -> None:
    with start_program(how) as child:
        _, said = child.communicate(timeout=120)
    assert child.returncode == code and ("RuntimeError: on purpose" in said) == bool(code), said
    assert wait_until(lambda: usage()[0] == 0, SECONDS), usage()
    assert child.pid not in usage()[1]
