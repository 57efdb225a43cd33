"""Run Nsight Compute (``ncu``), read hardware counters from its table, and name the kernels that they belong to."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from app.base.frozen import Frozen

if TYPE_CHECKING:
    from app.lab.profile.spans import Span

MAIN = Path(__file__).parents[3] / "main.py"
TIMEOUT_S = 900
BUSY = 60.0  # % of peak: if no unit reaches it, latency limits the kernel (Nsight Compute's rule)


class Counter(Frozen):
    """A hardware counter. words: its description. metric: Nsight Compute's name for it. unit: what it counts."""

    words: str
    metric: str
    unit: Literal["warps", "threads", "bytes", "%"]


# Counters of a ladder step, so that predictions can be compared with them.
COUNTERS: dict[str, Counter] = {
    "instructions": Counter("instructions", "smsp__inst_executed.sum", "warps"),
    "multiply_adds": Counter("multiply-adds", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "threads"),
    "global_loads": Counter("loads from global memory", "smsp__inst_executed_op_global_ld.sum", "warps"),
    "shared_loads": Counter("loads from shared memory", "smsp__inst_executed_op_shared_ld.sum", "warps"),
    "shared_cycles": Counter("cycles of shared loads", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "warps"),
    "bank_conflicts": Counter(
        "cycles that loads lose by bank conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", "warps"
    ),
    "dram_read": Counter("bytes read from device memory", "dram__bytes_read.sum", "bytes"),
    "dram_written": Counter("bytes written to device memory", "dram__bytes_write.sum", "bytes"),
    "issue": Counter("issue slots used", "smsp__issue_active.avg.pct_of_peak_sustained_active", "%"),
    "tensor": Counter("tensor cores busy", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "%"),
    "occupancy": Counter(
        "warps on a multiprocessor, of the most", "sm__warps_active.avg.pct_of_peak_sustained_active", "%"
    ),
    "SM": Counter("multiprocessors, of their peak", "sm__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    "L1": Counter(
        "L1 cache and shared memory, of their peak", "l1tex__throughput.avg.pct_of_peak_sustained_active", "%"
    ),
    "L2": Counter("L2 cache, of its peak", "lts__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    "DRAM": Counter("device memory, of its peak", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
}
# Unit → events of threads in one counted event: an instruction of a warp is one instruction of each of 32 threads.
WEIGHTS = {"warps": 32, "threads": 1, "bytes": 1}
# Counters of a kernel in the main job, in percent.
THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"  # active threads of a warp's 32
EFFICIENCIES = {
    "load": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "store": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "warps": THREADS,
    "occupancy": COUNTERS["occupancy"].metric,
}
THROUGHPUTS = {unit: COUNTERS[unit].metric for unit in ("SM", "L1", "L2", "DRAM")}
METRICS = (*EFFICIENCIES.values(), *THROUGHPUTS.values())


def busiest_unit(throughput: Mapping[str, float | None]) -> str:
    """Return the busiest unit, ``latency`` if none reaches BUSY %, ``unknown`` if not counted. throughput: unit → %."""
    known = {unit: share for unit, share in throughput.items() if share is not None}
    if not known:
        return "unknown"
    busiest = max(known, key=lambda unit: known[unit])
    return busiest if known[busiest] >= BUSY else "latency"


def parse_ncu_shares(text: str) -> list[dict[str, Any]]:
    """Return a row for each kernel launch in the output of ``ncu --csv --page raw``; skip lines before the table.

    Values are in percent, or None if the tool gave no number. Keys ``load``, ``store``: bytes used ÷ bytes moved by
    global memory instructions. warps: active threads of a warp's 32. throughput: unit (a key of THROUGHPUTS) → share of
    its peak. bound: the busiest unit.
    """
    return [_launch_shares(launch) for launch in parse_ncu_launches(text)]


def parse_ncu_launches(text: str) -> list[dict[str, str]]:
    """Return column → cell of each launch in ncu's table; [] if the text has no table."""
    rows = list(csv.reader(text.splitlines()))
    start = next((i for i, row in enumerate(rows) if row[:1] == ["ID"] and "Kernel Name" in row), None)
    if start is None:
        return []
    return [dict(zip(rows[start], row, strict=False)) for row in rows[start + 1 :] if row and row[0].isdigit()]


def _launch_shares(launch: Mapping[str, str]) -> dict[str, Any]:
    shares = {name: parse_number(launch.get(metric, "")) for name, metric in EFFICIENCIES.items()}
    if (threads := shares["warps"]) is not None:
        shares["warps"] = threads / 32 * 100
    throughput = {unit: parse_number(launch.get(metric, "")) for unit, metric in THROUGHPUTS.items()}
    kernel = launch["Kernel Name"].partition("(")[0]
    return {"kernel": kernel, **shares, "throughput": throughput, "bound": busiest_unit(throughput)}


def parse_number(text: str) -> float | None:
    """Return the number in a text (``1,234.5`` → 1234.5), or None for texts such as ``n/a``."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if isfinite(value) else None


def collect_counters(arguments: Sequence[str], entries: Sequence[str]) -> tuple[list[dict[str, Any]], str | None]:
    """Run ``main.py`` with these arguments under ncu; return the launches' counters, and the reason if there are none.

    entries: names of the launched functions, in order; ``len(entries)`` launches are counted.
    """
    text, note = run_ncu(arguments, entries, METRICS)
    return parse_ncu_shares(text), note


def run_ncu(arguments: Sequence[str], entries: Sequence[str], metrics: Sequence[str]) -> tuple[str, str | None]:
    """Run ``main.py`` under ncu; return its table as text and None, or "" and why not. entries: functions to count."""
    tool = shutil.which("ncu")
    if tool is None:
        return "", "no counters: Nsight Compute (ncu) is not installed or not on PATH"
    if not entries:
        return "", "no counters: none of the kernels is our own"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [
            *(tool, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
            *("--clock-control", "none", "--metrics", ",".join(metrics), "--launch-count", str(len(entries))),
            *("--kernel-name", f"regex:^({'|'.join(sorted(set(entries)))})$", "--kernel-name-base", "function"),
            *(sys.executable, str(MAIN), *arguments),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "", f"no counters: ncu was still running after {TIMEOUT_S} s"
        except OSError as error:
            return "", f"no counters: {tool} does not start ({error.strerror})"
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if parse_ncu_launches(text):
        return text, None
    return "", f"no counters: {describe_ncu_failure(f'{text}{done.stdout}{done.stderr}', done.returncode)}"


def describe_ncu_failure(text: str, code: int) -> str:
    """Return why ncu counted nothing: its first error, else its last line, else the exit code."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [
        re.sub(r"^==ERROR==\s*|^error:\s*", "", line) for line in lines if line.startswith(("==ERROR==", "error:"))
    ]
    return next(iter([*errors, *lines[-1:]]), f"ncu ended with exit code {code}")


def label_counter_rows(counted: Sequence[Mapping[str, Any]], launched: Sequence[Span]) -> list[dict[str, Any]]:
    """Return ``counted``, a row per launch, with layer and name of ``launched``; no layers if their kernels differ."""
    pairs = list(zip(counted, launched, strict=False))
    if all(row["kernel"] == span.entry for row, span in pairs):
        return [{"layer": span.layer, "name": span.name, **row} for row, span in pairs]
    return [{"layer": "", "name": row["kernel"], **row} for row in counted]


def normalize_count(name: str, value: float, outputs: float) -> float:
    """Return a counter's events ÷ ``outputs``, the number of output elements of the layer; percentages unchanged."""
    unit = COUNTERS[name].unit
    return value if unit == "%" else value * WEIGHTS[unit] / outputs
