"""Test the whole ``bench`` command with a fake card: output, files, stored results, and refused options."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app.cli import main
from app.kernels.problems import ConvProblem
from app.layers import Conv2d
from app.main_job.result import Timing
from app.network.definitions import NETWORKS
from app.planning import tuning
from tests.lab.conftest import Benched
from tests.support.shell import Refuses


@pytest.fixture
def card(some_card: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Any]:
    """A card on which a variant takes as many ms as its step says, ``shared-tile`` is wrong, and 40 images fit."""
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
                raise ladder.Wrong("wrong: image 3")
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
    monkeypatch.setattr(whole_network, "whole_program", whole_program)
    return FakeTrial


def test_bench(card: type[Any], benched: Benched) -> None:
    code, text, found = benched("--batches 20,80 --save-tuning")
    assert code == 1  # a variant was wrong
    assert "wrong: image 3" in text
    assert "conv2: 80 images do not fit in device memory, 40 were used" in text
    assert "no cuDNN rows: PyTorch is not installed" in text
    assert found["schema"] == "lenet5-inference/bench/1"
    assert [batch["images"] for batch in found["batches"]] == [20, 80]
    conv1 = next(table for table in found["tables"] if table["item"] == "conv1")
    assert conv1["images"] == 40
    assert [row["kind"] for row in conv1["rows"]][:2] == ["cpu", "library"]
    rows = {row["name"]: row for row in conv1["rows"] if row["dtype"] == "float32"}
    assert rows["direct"]["rates"]["previous_ratio"] == 0.5
    assert rows["direct, device debug"]["kind"] == "debug"
    assert rows["shared-tile"]["wrong"]
    sums = {row["name"]: row["sum_ms"] for row in found["totals"] if row["dtype"] == "float32"}
    assert sums["direct"] == 4.0
    problem = ConvProblem(1, 28, 28, 32, 5, input_dtype="uint8")
    chosen = tuning.load("Some Card").choose(problem, "sm_90a")
    assert chosen is not None
    assert chosen[0].name == "image-loop"  # the "fastest", being step 1


def test_one_shape_and_one_variant(card: type[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--shape", "3,9,8,5,3,2", "--only", "direct", "--batch", "7", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    (table,) = found["tables"]
    assert {row["name"] for row in table["rows"]} == {"CPU, NumPy", "direct", "direct, device debug"}
    assert found["whole_program"] == []
    assert set(card.made) == {7}


@pytest.mark.parametrize("message", ["not even one image fits", "interrupted"])
def test_nothing_is_written(
    message: str, card: type[Any], refuses: Refuses, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from app.cuda.memory import DeviceMemoryError
    from app.lab.bench import ladder

    error = KeyboardInterrupt if message == "interrupted" else DeviceMemoryError("full")
    monkeypatch.setattr(ladder, "Trial", Mock(side_effect=error))
    refuses(f"bench --shape 3,9,8,5,3,2 --batch 7 --json {tmp_path / 'bench.json'}", message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network(network: str, card: type[Any], benched: Benched, monkeypatch: pytest.MonkeyPatch) -> None:
    """First layers read bytes: enlarged ones where the network enlarges, which is a table of its own."""
    monkeypatch.setattr("app.lab.bench.ladder.CPU_FLOPS", 1e6)
    _, text, found = benched(f"--network {network} --batches 3,5")
    tables = {table["item"]: table for table in found["tables"]}
    layers = {layer.name: layer for layer in NETWORKS[network].layers}
    ops = [name for name, layer in layers.items() if isinstance(layer, Conv2d)]
    assert [table["item"] for table in found["tables"] if table["is_op"]] == ops
    assert ("resize" in tables) == ("resize" in layers)
    assert [(batch["images"], batch["whole_program"][0]["ms"]) for batch in found["batches"]] == [(3, 0.3), (5, 0.5)]
    assert found["whole_program"] == found["batches"][-1]["whole_program"]
    assert all(f"Whole program, {images} images" in text for images in (3, 5))
    assert ("Sum of the op times by batch size" in text) == bool(ops)
    if ops:
        size = layers["resize"].size if "resize" in layers else 28  # type: ignore[attr-defined]
        assert f"height={size} width={size} " in tables["conv1"]["problems"]["float32"]
        assert "input_dtype=uint8" in tables["conv1"]["problems"]["float32"]
        direct = next(row for row in found["totals"] if (row["name"], row["dtype"]) == ("direct", "float32"))
        assert set(direct["ops"]) == {"conv1", "conv2"} and direct["sum_ms"] == 4.0
    assert all(row["ms"] or row["reason"] for table in found["tables"] for row in table["rows"])
    assert all(name in text for name in tables)
