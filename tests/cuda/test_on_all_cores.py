"""Ctrl-C while many kernels compile: those that have not begun are dropped, wherever it comes."""

import os
import signal
from collections.abc import Callable, Iterator
from threading import Event

import pytest
from tqdm import tqdm

from app.kernels import registry
from app.kernels.problems import LinearProblem
from app.lab.bench import compiling
from app.planning import tuning
from app.tools import machine_code, precompile, resources

CORES = 2
ROWS = [row for row in registry.variants("gemm") if row.refusal(LinearProblem(20, 10), "sm_80") is None]
COMMANDS: dict[str, Callable[[], object]] = {
    "kernels --resources": lambda: resources.measure(ROWS, "sm_80"),
    "kernels --instructions": lambda: machine_code.measure(ROWS, "sm_80"),
    "bench": lambda: compiling.compile_rows([(LinearProblem(20, 10), row) for row in ROWS], "sm_80", tuning.load("")),
    "precompile": lambda: precompile._compile_all([(row.path, ()) for row in ROWS], "sm_80"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_between_two_kernels_drops_the_others(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when all are in the queue of the threads, and the main thread waits for none yet."""
    interrupted, begun = Event(), 0

    def compiled(*_: object) -> Iterator[None]:
        nonlocal begun
        begun += 1
        assert interrupted.wait(60)
        return iter(())

    def interrupt(bar: tqdm) -> Iterator[object]:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            interrupted.set()
        return iter(bar.iterable)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(CORES))
    monkeypatch.setattr(tqdm, "__iter__", interrupt)
    monkeypatch.setattr(machine_code, "find_tool", lambda: "")
    monkeypatch.setattr(precompile, "is_cached", lambda *_: False)
    for module in (resources, machine_code):
        monkeypatch.setattr(module, "_example", compiled)
    for module in (compiling, precompile):
        monkeypatch.setattr(module, "compile_kernel", compiled)
    with pytest.raises(KeyboardInterrupt):
        COMMANDS[command]()
    assert begun <= CORES < len(ROWS)
