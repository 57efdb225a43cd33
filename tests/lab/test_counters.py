"""Test hardware counters: Nsight Compute's table is read by column, and its failures become one line."""

from pathlib import Path

import pytest

from app.lab.profile import counters
from app.lab.profile.spans import Span

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


def test_counters_are_found_by_name() -> None:
    first, second = counters.parse(CSV)
    shares = {"load": 99.25, "store": None, "warps": 50, "occupancy": None}
    throughput = {"SM": 88.1, "L1": 1000.5, "L2": None, "DRAM": 12.5}
    assert first == {"kernel": "conv_direct", **shares, "throughput": throughput, "bound": "L1"}
    assert second["bound"] == "latency" and second["throughput"]["L1"] is None


def test_the_bound() -> None:
    assert counters.bound({"SM": 70, "DRAM": 60.5}) == "SM"
    assert counters.bound({"SM": 59, "DRAM": 30}) == "latency"
    assert counters.bound({"SM": None}) == "unknown"


@pytest.mark.parametrize("text", ["", "==PROF== no kernels", '"ID","a"\n', "\x00,\n"])
def test_no_table(text: str) -> None:
    assert counters.parse(text) == []


def test_labels_only_where_the_order_agrees() -> None:
    counted = counters.parse(CSV)
    expected = [{"layer": "conv1+relu1", "name": "direct", **row} for row in counted]
    assert counters.labelled(counted, [DIRECT, DIRECT]) == expected
    other = [Span("kernel", "fc1", "naive", 0, entry="gemm_naive")]
    assert [row["layer"] for row in counters.labelled(counted, other)] == ["", ""]


def tool(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ``ncu`` on PATH that runs this script, in which $LOG is the file that it is to write."""
    path = folder / "ncu"
    path.write_text(f'#!/bin/sh\nwhile [ "$1" != --log-file ]; do shift; done\nLOG=$2\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_ncu_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table").write_text(CSV)
    tool(tmp_path, f'echo "$@" > {tmp_path}/arguments; cat {tmp_path}/table > "$LOG"', monkeypatch)
    rows, note = counters.collect(["profile", "--batch=5"], ["conv_direct", "gemm_naive", "conv_direct"])
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
def test_ncu_fails(script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, script, monkeypatch)
    rows, note = counters.collect([], ["conv_direct"])
    assert rows == [] and note is not None and reason in note and "\n" not in note and "==" not in note


def test_no_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert counters.collect([], ["k"]) == ([], "no counters: Nsight Compute (ncu) is not installed or not on PATH")
