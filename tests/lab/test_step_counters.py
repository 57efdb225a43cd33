"""Test the counters of every step: which launches are counted, and what is made of ncu's table."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.kernels.registry import find
from app.lab.profile import every_step
from app.lab.profile.step_counters import COUNTERS, counted
from app.network.generated import network_graph
from app.planning.matching import Choices
from tests.lab.test_counters import tool
from tests.support.peers_for_tests import CARD
from tests.support.schemas import mistakes

LENET5 = network_graph("lenet5")


def table(values: list[dict[str, str]]) -> str:
    """ncu's table with these cells by counter."""
    names = list(COUNTERS)
    lines = [["ID", "Kernel Name", *(COUNTERS[name].metric for name in names)]]
    lines += [[str(at), "conv_direct", *(row.get(name, "n/a") for name in names)] for at, row in enumerate(values)]
    return "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in lines)


def test_events_are_added_up_and_percent_are_of_the_largest_launch() -> None:
    text = table(
        [
            {"instructions": "100", "issue": "10", "dram_read": "1,000"},
            {"instructions": "900", "issue": "90", "dram_read": "500"},
            {"instructions": "7"},
        ]
    )
    found = counted(text, ["conv1", "conv1", "conv2"])
    assert found["conv1"]["launches"] == 2 and found["conv2"]["launches"] == 1
    assert [found["conv1"]["counts"][name] for name in ("instructions", "issue", "dram_read")] == [1000, 90, 1500]
    assert found["conv2"]["counts"]["issue"] is None and found["conv1"]["counts"]["tensor"] is None
    assert counted(text, ["conv1", "conv2"]) == {} and counted("", []) == {}


@pytest.mark.parametrize(
    ("operation", "name", "precision", "expected"),
    [
        ("conv", "direct", "fp32", [("conv1", "conv_direct"), ("conv2", "conv_direct")]),
        ("conv", "constant", "fp32", [("conv1", "conv_constant"), *[("conv2", "conv_constant")] * 4]),
        ("gemm", "naive", "fp32", [("fc1", "gemm_naive"), ("fc2", "gemm_naive")]),
        ("conv", "tensor-core", "fp16", [("conv1", "conv_tensor_core"), ("conv2", "conv_tensor_core")]),
    ],
)
def test_the_launches_of_a_step(operation: str, name: str, precision: str, expected: list[tuple[str, str]]) -> None:
    row = find(operation, name)
    assert row is not None
    chosen = Choices(precision, fuse=False, kernels={operation: row})
    assert [*every_step.entries(LENET5, "sm_90a", chosen, row, 1000)] == expected


def test_pieces_of_a_large_batch_are_launches_of_their_own() -> None:
    row = find("conv", "im2col-gemm")
    assert row is not None
    chosen = Choices("fp32", fuse=False, kernels={"conv": row})
    one, many = ([*every_step.entries(LENET5, "sm_90a", chosen, row, batch)] for batch in (1, 10_000))
    assert one[:3] == [("conv1", f"conv_im2col_gemm{part}") for part in ("_unroll", "", "_layout")]
    assert len(one) == 6 and len(many) > 12 and {*many} == {*one}


def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every_step.device, "describe_gpu", lambda: CARD)


def test_every_step_is_counted_on_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[list[str]] = []

    def run(arguments: list[str], entries: list[str], _: Any) -> tuple[str, None]:
        asked.append(arguments)
        return table([{"instructions": "640", "DRAM": "12.5"}] * len(entries)), None

    fake(monkeypatch)
    monkeypatch.setattr(every_step.counters, "run", run)
    document = every_step.count_steps(LENET5, "lenet5", 100, "cuda:1")
    assert not mistakes(document) and document["note"] is None
    names = [(row["operation"], row["name"], row["layer"]) for row in document["rows"]]
    assert len(set(names)) == len(names) and ("conv", "half2", "conv2") in names and ("gemm", "naive", "fc2") in names
    assert not [name for name in names if name[1] == "cublas"]  # the library's kernels have other names
    told = next(arguments for arguments in asked if "--conv=direct" in arguments)
    assert {"--batch=100", "--chunk=100", "--streams=1", "--no-fuse", "--precision=fp32", "--device=cuda:1"} <= {*told}
    assert "--precision=fp16" in next(arguments for arguments in asked if "--conv=half2" in arguments)
    text = every_step.as_text(document)
    assert "conv half2" in text and "12.5" in text and max(map(len, text.splitlines())) <= 80


def test_one_line_says_why_nothing_was_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch)
    tool(tmp_path, 'echo "==ERROR== ERR_NVGPUCTRPERM - no permission" > $LOG; exit 1', monkeypatch)
    document = every_step.count_steps(LENET5, "lenet5", 100, "cuda")
    assert document["rows"] == [] and "ERR_NVGPUCTRPERM" in str(document["note"])
    assert not mistakes(json.loads(json.dumps(document)))
    assert every_step.as_text(document).endswith("no permission")
