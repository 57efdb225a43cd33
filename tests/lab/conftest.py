"""Fixtures to test ``bench`` without a GPU: a fake card, a user's kernel file, and answers of its child process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.lab.peers import rounds
from app.lab.user_kernel.child import CardProcess
from app.lab.user_kernel.row import find_named_variant
from app.lab.user_kernel.template import kernel_template
from app.main_job.result import Timing
from tests.support.peers_for_tests import CARD
from tests.support.schemas import mistakes

RunBench = Callable[[str], tuple[int, str, Any]]


@pytest.fixture
def run_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> RunBench:
    """Return a function that runs ``bench`` and returns exit code, output and JSON document, which has its schema."""

    def run(options: str) -> tuple[int, str, dict[str, Any]]:
        target = tmp_path / "bench.json"
        code = main(["bench", *options.split(), "--json", str(target)])
        document = json.loads(target.read_text(encoding="utf-8"))
        assert not mistakes(document)
        return code, capsys.readouterr().out, document

    return run


@pytest.fixture
def some_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find a GPU, described by CARD."""
    monkeypatch.setattr("app.cuda.device.why_no_gpu", lambda: None)
    monkeypatch.setattr("app.cuda.device.describe_gpu", lambda: CARD)


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the runs of ``bench --peers`` to the fewest that show an order."""
    few = {"WARMUP": 1, "UNTIMED": 1, "LEAST_RUNS": 2, "MOST_RUNS": 3, "LEAST_SERIES": 1, "PASSES": 3, "TRIES": 3}
    few["LEAST_PASSES"] = 1
    for name, value in few.items():
        monkeypatch.setattr(rounds, name, value)


@pytest.fixture
def card(some_card: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Any]:
    """Fake a card on which step N takes N ms, ``shared-tile`` is wrong, and 40 images fit; return its trial."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.cuda.memory import DeviceMemoryError
    from app.lab.bench import compiling, cudnn, ladder, peak, whole_network

    class FakeTrial:
        made: list[int] = []  # noqa: RUF012

        def __init__(self, problem: Any, images: int, arch: str) -> None:
            self.made.append(images)
            if images > 40:
                raise DeviceMemoryError("too many")
            self.problem, self.images = problem, images

        def bind_variant(self, row: Any, parameters: Any, *, debug: bool) -> Any:
            return row

        def check_outputs(self, launch: Any) -> float:
            if launch.name == "shared-tile":
                raise ladder.WrongResult("wrong: image 3")
            return 0.5

        def time_launch(self, launch: Any, noise: float, l2: str) -> Timing:
            return Timing((float(launch.step or 0.5),) * 10)

    def whole_program(graph: Any, arch: str, known: Any, images: int, *_: Any) -> list[dict[str, Any]]:
        row = {"precision": "fp32", "conv": "auto", "ms": images / 10, "spread_ms": 0.1, "runs": 3}
        return [row | {"nodes": ["all: fake"], "reason": ""}]

    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(ladder, "Trial", FakeTrial)
    monkeypatch.setattr(compiling, "compile_kernel", lambda *_: b"")
    monkeypatch.setattr(peak, "measure_peaks", lambda arch: {"tflops": {"float32": 50.0}, "gbytes_per_s": 3000.0})
    monkeypatch.setattr(cudnn, "why_no_cudnn", lambda: "PyTorch is not installed")
    monkeypatch.setattr(whole_network, "time_whole_program", whole_program)
    return FakeTrial


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return the path of a user's kernel file, a copy of ``direct``."""
    path = tmp_path / "mine.cu"
    path.write_text(kernel_template(find_named_variant("direct"), "mine.cu"))
    return path


@pytest.fixture
def answers(card: type[Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Fake the child process of the user's kernel; return its answers: function → result or exception."""
    told: dict[str, Any] = {
        "check_user_case": None,
        "time_in_process": {"error": 0.25, "samples": [2.5] * 10, "mhz": [1980.2, 1755]},
    }

    def call(_: CardProcess, function: Any, *arguments: Any, times: int = 1) -> Any:
        found = told[function.__name__]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(CardProcess, "call", call)
    return told
