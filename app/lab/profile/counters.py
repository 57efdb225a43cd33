"""Read hardware counters of each kernel by Nsight Compute (``ncu``), where it is installed."""

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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # needs CuPy
    from app.lab.profile.spans import Span

MAIN = Path(__file__).parents[3] / "main.py"
TIMEOUT_S = 900
THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"  # active threads of a warp's 32
EFFICIENCIES = {
    "load": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "store": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "warps": THREADS,
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
THROUGHPUTS = {
    "SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
METRICS = (*EFFICIENCIES.values(), *THROUGHPUTS.values())
BUSY = 60.0  # %; a kernel waits if no unit reaches this share of its peak: Nsight Compute's own rule


def bound(throughput: Mapping[str, float | None]) -> str:
    """Name the busiest unit; ``latency`` if none is busy, ``unknown`` without numbers."""
    known = {unit: share for unit, share in throughput.items() if share is not None}
    if not known:
        return "unknown"
    busiest = max(known, key=lambda unit: known[unit])
    return busiest if known[busiest] >= BUSY else "latency"


def parse(text: str) -> list[dict[str, Any]]:
    """Parse the table that ``ncu --csv --page raw`` prints, by column names; lines before the table are skipped.

    Return a row for each kernel launch, in percent; None where the tool gave no number. load, store: bytes used ÷ bytes
    fetched by global memory instructions. warps: active threads of a warp's 32. throughput: unit (a key of THROUGHPUTS)
    → share of its peak; bound: the busiest unit.
    """
    return [_counters(launch) for launch in launches(text)]


def launches(text: str) -> list[dict[str, str]]:
    """Return the cells of that table by column, for each launch."""
    rows = list(csv.reader(text.splitlines()))
    start = next((i for i, row in enumerate(rows) if row[:1] == ["ID"] and "Kernel Name" in row), None)
    if start is None:
        return []
    return [dict(zip(rows[start], row, strict=False)) for row in rows[start + 1 :] if row and row[0].isdigit()]


def _counters(launch: Mapping[str, str]) -> dict[str, Any]:
    shares = {name: number(launch.get(metric, "")) for name, metric in EFFICIENCIES.items()}
    if (threads := shares["warps"]) is not None:
        shares["warps"] = threads / 32 * 100
    throughput = {unit: number(launch.get(metric, "")) for unit, metric in THROUGHPUTS.items()}
    kernel = launch["Kernel Name"].partition("(")[0]
    return {"kernel": kernel, **shares, "throughput": throughput, "bound": bound(throughput)}


def number(text: str) -> float | None:
    """Parse a number: ``1,234.5`` → 1234.5; None for ``n/a`` and the like."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if isfinite(value) else None


def collect(arguments: Sequence[str], entries: Sequence[str]) -> tuple[list[dict[str, Any]], str | None]:
    """Count the first launches of ``main.py`` with these arguments; return them, or the reason for failure in one line.

    entries: names of the launched functions, in order; ``len(entries)`` launches are counted.
    """
    text, note = run(arguments, entries, METRICS)
    return parse(text), note


def run(arguments: Sequence[str], entries: Sequence[str], metrics: Sequence[str]) -> tuple[str, str | None]:
    """Count as ``collect`` does; return ncu's text with its table, or an empty one and the reason for failure."""
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
    if launches(text):
        return text, None
    return "", f"no counters: {failure(f'{text}{done.stdout}{done.stderr}', done.returncode)}"


def failure(text: str, code: int) -> str:
    """Return why ncu counted nothing, as ncu words it: its first error, else its last line, else the exit code."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [
        re.sub(r"^==ERROR==\s*|^error:\s*", "", line) for line in lines if line.startswith(("==ERROR==", "error:"))
    ]
    return next(iter([*errors, *lines[-1:]]), f"ncu ended with exit code {code}")


def labelled(counted: Sequence[Mapping[str, Any]], launched: Sequence[Span]) -> list[dict[str, Any]]:
    """Add layer and kernel name to each row of counters. launched: the spans of the same launches, in order."""
    pairs = list(zip(counted, launched, strict=False))
    if all(row["kernel"] == span.entry for row, span in pairs):
        return [{"layer": span.layer, "name": span.name, **row} for row, span in pairs]
    return [{"layer": "", "name": row["kernel"], **row} for row in counted]
