"""Test that ``profile`` reads hardware counters from Nsight Compute's table, and says why there are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.kernels.registry import find_variant
from app.lab.profile import counters, every_step
from app.lab.profile.counters import COUNTERS
from app.lab.profile.every_step import counts_by_layer
from app.lab.profile.spans import Span
from app.network.graph import network_graph
from app.planning.matching import Choices
from tests.support.schemas import mistakes

DIRECT = Span("kernel", "conv1+relu1", "direct", 0, entry="conv_direct")
ROOT = Path(__file__).parents[2]
CSV = f'''\
==PROF== Connected to process 17 (/usr/bin/python3)
==PROF== Profiling "conv_direct" - 0: 0%....50%....100% - 9 passes
"ID","Process ID","Kernel Name","Block Size","{counters.THROUGHPUTS["DRAM"]}","{counters.EFFICIENCIES["load"]}",\
"{counters.EFFICIENCIES["store"]}","{counters.THROUGHPUTS["SM"]}","{counters.THREADS}","{counters.THROUGHPUTS["L1"]}"
"","","","","%","%","%","%","",""
"0","17","conv_direct(const float *, int)","(256, 1, 1)","12.5","99.25","n/a","88.1","16","1,000.5"
"1","17","conv_direct","(256, 1, 1)","12.5","50","100","20","32","nan"
'''


def test_counters_are_read_by_column_name() -> None:
    first, second = counters.parse_ncu_shares(CSV)
    shares = {"load": 99.25, "store": None, "warps": 50, "occupancy": None}
    throughput = {"SM": 88.1, "L1": 1000.5, "L2": None, "DRAM": 12.5}
    assert first == {"kernel": "conv_direct", **shares, "throughput": throughput, "bound": "L1"}
    assert second["bound"] == "latency" and second["throughput"]["L1"] is None


def test_busiest_unit() -> None:
    assert counters.busiest_unit({"SM": 70, "DRAM": 60.5}) == "SM"
    assert counters.busiest_unit({"SM": 59, "DRAM": 30}) == "latency"
    assert counters.busiest_unit({"SM": None}) == "unknown"


@pytest.mark.parametrize("text", ["", "==PROF== no kernels", '"ID","a"\n', "\x00,\n"])
def test_text_without_a_table_has_no_rows(text: str) -> None:
    assert counters.parse_ncu_shares(text) == []


def test_counters_get_layers_only_if_the_kernels_match() -> None:
    counted = counters.parse_ncu_shares(CSV)
    expected = [{"layer": "conv1+relu1", "name": "direct", **row} for row in counted]
    assert counters.label_counter_rows(counted, [DIRECT, DIRECT]) == expected
    other = [Span("kernel", "fc1", "naive", 0, entry="gemm_naive")]
    assert [row["layer"] for row in counters.label_counter_rows(counted, other)] == ["", ""]


def install_fake_ncu(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an ``ncu`` on PATH that runs this script, in which $LOG is the file to write."""
    path = folder / "ncu"
    path.write_text(f'#!/bin/sh\nwhile [ "$1" != --log-file ]; do shift; done\nLOG=$2\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_ncu_gets_kernels_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table").write_text(CSV)
    install_fake_ncu(tmp_path, f'echo "$@" > {tmp_path}/arguments; cat {tmp_path}/table > "$LOG"', monkeypatch)
    rows, note = counters.collect_counters(["profile", "--batch=5"], ["conv_direct", "gemm_naive", "conv_direct"])
    assert len(rows) == 2 and note is None
    given = (tmp_path / "arguments").read_text()
    for told in ("--launch-count 3", "regex:^(conv_direct|gemm_naive)$", f"{ROOT}/main.py profile --batch=5"):
        assert told in given


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('echo "==PROF== x" > $LOG; echo "==ERROR== ERR_NVGPUCTRPERM - no permission" >> $LOG; exit 1', "ERR_NVGPU"),
        ("echo 'error: no GPU' >&2; exit 2", "no GPU"),
        ("exit 9", "exit code 9"),
    ],
)
def test_failure_of_ncu(script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_ncu(tmp_path, script, monkeypatch)
    rows, note = counters.collect_counters([], ["conv_direct"])
    assert rows == [] and note is not None and reason in note and "\n" not in note and "==" not in note


def test_missing_ncu_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert counters.collect_counters([], ["k"]) == (
        [],
        "no counters: Nsight Compute (ncu) is not installed or not on PATH",
    )


LENET5 = network_graph("lenet5")


def ncu_table(values: list[dict[str, str]]) -> str:
    """Return ncu's table. values: for each launch, counter → cell."""
    names = list(COUNTERS)
    lines = [["ID", "Kernel Name", *(COUNTERS[name].metric for name in names)]]
    lines += [[str(at), "conv_direct", *(row.get(name, "n/a") for name in names)] for at, row in enumerate(values)]
    return "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in lines)


def test_events_are_summed_and_percentages_are_of_the_largest_launch() -> None:
    text = ncu_table(
        [
            {"instructions": "100", "issue": "10", "dram_read": "1,000"},
            {"instructions": "900", "issue": "90", "dram_read": "500"},
            {"instructions": "7"},
        ]
    )
    found = counts_by_layer(text, ["conv1", "conv1", "conv2"])
    assert found["conv1"]["launches"] == 2 and found["conv2"]["launches"] == 1
    assert [found["conv1"]["counts"][name] for name in ("instructions", "issue", "dram_read")] == [1000, 90, 1500]
    assert found["conv2"]["counts"]["issue"] is None and found["conv1"]["counts"]["tensor"] is None
    assert counts_by_layer(text, ["conv1", "conv2"]) == {} and counts_by_layer("", []) == {}


@pytest.mark.parametrize(
    ("operation", "name", "precision", "expected"),
    [
        ("conv", "direct", "fp32", [("conv1", "conv_direct"), ("conv2", "conv_direct")]),
        ("conv", "constant", "fp32", [("conv1", "conv_constant"), *[("conv2", "conv_constant")] * 4]),
        ("gemm", "naive", "fp32", [("fc1", "gemm_naive"), ("fc2", "gemm_naive")]),
        ("conv", "tensor-core", "fp16", [("conv1", "conv_tensor_core"), ("conv2", "conv_tensor_core")]),
    ],
)
def test_launched_functions(operation: str, name: str, precision: str, expected: list[tuple[str, str]]) -> None:
    row = find_variant(operation, name)
    assert row is not None
    chosen = Choices(precision, fuse=False, kernels={operation: row})
    assert [*every_step.launched_functions(LENET5, "sm_90a", chosen, row, 1000)] == expected


def test_each_piece_of_a_large_batch_is_launched() -> None:
    row = find_variant("conv", "im2col-gemm")
    assert row is not None
    chosen = Choices("fp32", fuse=False, kernels={"conv": row})
    one, many = ([*every_step.launched_functions(LENET5, "sm_90a", chosen, row, batch)] for batch in (1, 10_000))
    assert one[:3] == [("conv1", f"conv_im2col_gemm{part}") for part in ("_unroll", "", "_layout")]
    assert len(one) == 6 and len(many) > 12 and {*many} == {*one}


@pytest.mark.usefixtures("some_card")
def test_every_step_is_counted_separately(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[list[str]] = []

    def run(arguments: list[str], entries: list[str], _: Any) -> tuple[str, None]:
        asked.append(arguments)
        return ncu_table([{"instructions": "640", "DRAM": "12.5"}] * len(entries)), None

    monkeypatch.setattr(every_step, "run_ncu", run)
    document = every_step.count_step_events(LENET5, "lenet5", 100, "cuda:1")
    assert not mistakes(document) and document["note"] is None
    names = [(row["operation"], row["name"], row["layer"]) for row in document["rows"]]
    assert len(set(names)) == len(names) and ("conv", "half2", "conv2") in names and ("gemm", "naive", "fc2") in names
    assert not [name for name in names if name[1] == "cublas"]  # the library's kernels have other names
    assert [name[2] for name in names if name[:2] == ("conv", "warpgroup")] == ["conv2"]  # conv1 reads bytes
    assert any("--conv=conv2=warpgroup" in arguments for arguments in asked)
    assert any("--conv=conv2=warpgroup-sparse" in arguments for arguments in asked)
    told = next(arguments for arguments in asked if "--conv=conv1=direct,conv2=direct" in arguments)
    assert {"--batch=100", "--chunk=100", "--streams=1", "--no-fuse", "--precision=fp32", "--device=cuda:1"} <= {*told}
    assert "--precision=fp16" in next(arguments for arguments in asked if "--conv=conv1=half2,conv2=half2" in arguments)
    text = every_step.as_text(document)
    assert "conv half2" in text and "12.5" in text and max(map(len, text.splitlines())) <= 80


@pytest.mark.usefixtures("some_card")
def test_note_says_why_nothing_was_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_ncu(tmp_path, 'echo "==ERROR== ERR_NVGPUCTRPERM - no permission" > $LOG; exit 1', monkeypatch)
    document = every_step.count_step_events(LENET5, "lenet5", 100, "cuda")
    assert document["rows"] == [] and "ERR_NVGPUCTRPERM" in str(document["note"])
    assert not mistakes(json.loads(json.dumps(document)))
    assert every_step.as_text(document).endswith("no permission")
