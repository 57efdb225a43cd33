"""How often training looks up: batches done together, and Ctrl-C between the pieces of the CPU's work."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.bench import training as bench
from app.network.definitions import MLP as NETWORK
from app.training import cpu_engine, loop
from app.training.cpu_engine import CpuEngine
from app.training.model import Model, training_model
from tests.support.shell import listing
from tests.support.training_for_tests import Train, some_settings
from tests.training.test_train_command import MLP, check_failure


class Recorder:
    """An engine that notes what it is asked for."""

    def __init__(self, together: int) -> None:
        self.together, self.asked = together, list[tuple[int, int]]()

    def train(self, batches: Sequence[np.ndarray], epoch: int, step: int) -> list[tuple[float, int]]:
        self.asked.append((step, len(batches)))
        return [(1.0, 1)] * len(batches)

    def evaluate(self, items: np.ndarray) -> tuple[float, int]:
        return 1.0, 1

    def state(self) -> tuple[dict, dict]:
        return {}, {}


@pytest.mark.parametrize(
    ("together", "asked", "done"),
    [(1, [(0, 1), (1, 1), (2, 1), (3, 1)], [16, 16, 16, 4]), (3, [(0, 3), (3, 1)], [48, 4])],
)
def test_as_many_batches_together_as_the_engine_says(
    together: int, asked: list[tuple[int, int]], done: list[int]
) -> None:
    settings = some_settings(batch=16)  # of 52 images
    engine, bar = Recorder(together), list[int]()
    start = loop.start(training_model(NETWORK, settings.biases), settings)
    loop.run_epoch(engine, settings, start, lambda count, *_: bar.append(count))
    assert (engine.asked, bar, CpuEngine.together) == (asked, done, 1)


@pytest.mark.parametrize("function", ["gradients", "logits"])
def test_ctrl_c_between_two_pieces(function: str, train: Train, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch, and of the images held out: ten pieces by one thread."""
    calls: list[object] = []
    before = listing(place)
    real = getattr(Model, function)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)  # the main thread notes it
        return real(*arguments, **options)

    monkeypatch.setattr(cpu_engine, "PIECE", 2)
    monkeypatch.setattr(cpu_engine, "usable_cores", lambda: 1)
    monkeypatch.setattr(Model, function, interrupted)
    options = ["--batch", "20", "--validation", "20"]
    check_failure(train(*MLP, *options), "interrupted; nothing half-written was left")
    assert len(calls) == 1 and listing(place) == before


def test_bench_defers_ctrl_c_while_threads_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.training.gpu import engine

    steps: list[str] = []

    def interrupted(*_: object) -> float:
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("not cut off while it may hold a lock")
        return 1.0

    monkeypatch.setattr(engine, "GpuEngine", lambda *_: None)
    monkeypatch.setattr(bench, "IMAGES", 64)
    for name, replacement in {
        "_epoch_seconds": lambda *_: 1.0,
        "_shares": lambda *_: {},
        "_batch_seconds": interrupted,
    }.items():
        monkeypatch.setattr(bench, name, replacement)
    with pytest.raises(KeyboardInterrupt):
        bench.measure(bench.Case("mlp", 16, 100), "sm_90a")
    assert steps
