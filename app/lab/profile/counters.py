"""Collect hardware counters by Nsight Compute (``ncu``): of a run's kernels, or of every ladder step."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from tqdm import tqdm

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.precision import BY_DTYPE
from app.cuda import device
from app.kernels import registry
from app.kernels.variant import Variant, ceil_div
from app.lab.document import describe_card, utc_date
from app.network.graph import Graph
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.plan import plan
from app.records.parts import Card
from app.records.profile import Counters, StepRow
from app.terminal.text import WIDTH, Column, fields, paragraph, table

if TYPE_CHECKING:
    from app.lab.profile.spans import Span

MAIN = Path(__file__).parents[3] / "main.py"
TIMEOUT_S = 900
BUSY = 60.0  # %; a kernel waits if no unit reaches this share of its peak: Nsight Compute's own rule


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
# Events per thread that one counted event stands for: an instruction of a warp is one of each of its 32 threads.
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
    """Return the name of the busiest unit; ``latency`` if no unit is busy, ``unknown`` without numbers."""
    known = {unit: share for unit, share in throughput.items() if share is not None}
    if not known:
        return "unknown"
    busiest = max(known, key=lambda unit: known[unit])
    return busiest if known[busiest] >= BUSY else "latency"


def parse_ncu_shares(text: str) -> list[dict[str, Any]]:
    """Return a row for each kernel launch in the table that ``ncu --csv --page raw`` prints, without earlier lines.

    Values are in percent, or None if the tool gave no number. load, store: bytes used ÷ bytes moved by global memory
    instructions. warps: active threads of a warp's 32. throughput: unit (a key of THROUGHPUTS) → share of its peak.
    bound: the busiest unit.
    """
    return [_launch_shares(launch) for launch in parse_ncu_launches(text)]


def parse_ncu_launches(text: str) -> list[dict[str, str]]:
    """Return the cells of each launch in ncu's table, by column."""
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
    """Run ``main.py`` under ncu as ``collect_counters`` does; return ncu's text, or "" and why it failed."""
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
    return "", f"no counters: {ncu_failure(f'{text}{done.stdout}{done.stderr}', done.returncode)}"


def ncu_failure(text: str, code: int) -> str:
    """Return why ncu counted nothing: its first error, else its last line, else the exit code."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [
        re.sub(r"^==ERROR==\s*|^error:\s*", "", line) for line in lines if line.startswith(("==ERROR==", "error:"))
    ]
    return next(iter([*errors, *lines[-1:]]), f"ncu ended with exit code {code}")


def label_counter_rows(counted: Sequence[Mapping[str, Any]], launched: Sequence[Span]) -> list[dict[str, Any]]:
    """Return the counters' rows with layer and kernel name. launched: spans of the same launches, in the same order."""
    pairs = list(zip(counted, launched, strict=False))
    if all(row["kernel"] == span.entry for row, span in pairs):
        return [{"layer": span.layer, "name": span.name, **row} for row, span in pairs]
    return [{"layer": "", "name": row["kernel"], **row} for row in counted]


def normalize_count(name: str, value: float, outputs: float) -> float:
    """Return a count in the unit that the pages show: per output, or in percent."""
    unit = COUNTERS[name].unit
    return value if unit == "%" else value * WEIGHTS[unit] / outputs


def counts_by_layer(text: str, layers: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return ncu's counts for each layer; empty unless its table has every launch. layers: each launch's layer.

    launches: number of the layer's launches. counts: events are summed over these; percentages are those of the launch
    with the most instructions; None if the tool gave no number.
    """
    rows = parse_ncu_launches(text)
    if len(rows) != len(layers):
        return {}
    found = {}
    for layer in dict.fromkeys(layers):
        own = [row for row, name in zip(rows, layers, strict=True) if name == layer]
        instructions = COUNTERS["instructions"].metric
        largest = max(own, key=lambda row: parse_number(row.get(instructions, "")) or 0)
        counts = {
            name: _metric_value([largest] if counter.unit == "%" else own, counter.metric)
            for name, counter in COUNTERS.items()
        }
        found[layer] = {"launches": len(own), "counts": counts}
    return found


def _metric_value(rows: Sequence[Mapping[str, str]], metric: str) -> float | None:
    values = [parse_number(row.get(metric, "")) for row in rows]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


OPTIONS = {"conv": "conv", "gemm": "fc"}  # operation → the option that names its kernels
SHOWN = ("issue", "occupancy", "SM", "L1", "L2", "DRAM", "tensor")


def count_step_events(graph: Graph, name: str, batch: int, selected: str) -> Counters:
    """Run ncu on every step of the ladders, on each layer that the step can compute. Needs a GPU.

    name: of the network, or its file. batch: number of images. selected: the card, as ``--device`` names it. If nothing
    was counted, the document's ``note`` gives the reason.
    """
    card = device.describe_gpu()
    known = tuning.load(card["name"])
    rows_of_ladders = (row for operation in OPTIONS for row in registry.variants(operation) if row.taught)
    steps = [row for row in rows_of_ladders if not row.needs_cublas]
    rows: list[StepRow] = []
    note: str | None = None
    for row in (bar := tqdm(steps, unit=" steps", disable=None)):
        bar.set_postfix_str(row.name)
        dtype = "float32" if "float32" in row.dtypes else row.dtypes[0]
        chosen = Choices(BY_DTYPE[dtype].name, fuse=False, kernels={row.operation: row}, tuning=known)
        try:
            launched = [*launched_functions(graph, card["architecture"], chosen, row, batch)]
        except UserError:
            continue  # the step does not serve this network, or not on this card
        text, note = run_ncu(
            main_job_arguments(name, row, chosen.precision, batch, selected),
            [entry for _, entry in launched],
            [counter.metric for counter in COUNTERS.values()],
        )
        if note is not None:
            break  # other steps would fail the same way
        about = {"operation": row.operation, "name": row.name, "dtype": dtype, "images": batch}
        found = counts_by_layer(text, [layer for layer, _ in launched])
        rows += [cast(StepRow, {**about, "layer": layer, **values}) for layer, values in found.items()]
    return {
        "schema": "lenet5-inference/counters/1",
        "date": utc_date(),
        "device": cast(Card, card),
        "network": graph.network.name,
        "rows": rows,
        "note": note,
    }


def launched_functions(graph: Graph, arch: str, chosen: Choices, row: Variant, batch: int) -> Iterator[tuple[str, str]]:
    """Yield layer and function name of each launch of this variant for one batch, in order. Raises UserError."""
    for node in plan(graph, arch, chosen).nodes:
        if node.variant is row:
            config = row.launch_config(node.problem, node.settings)
            pieces = ceil_div(batch, config.images_at_a_time) if config.images_at_a_time else 1
            yield from [(node.head.name, x.entry or row.entry) for x in config.launches if x.grid(batch)[0]] * pieces


def main_job_arguments(network: str, row: Variant, precision: str, batch: int, selected: str) -> list[str]:
    """Return arguments of ``main.py`` to run one batch in one piece, layer by layer, with this kernel."""
    given = {
        "batch": batch,
        "chunk": batch,
        "streams": 1,
        "network": network,
        "precision": precision,
        OPTIONS[row.operation]: row.name,
        "device": selected,
    }
    return ["profile", *(f"--{name}={value}" for name, value in given.items()), "--no-fuse"]


def as_text(document: Counters, width: int = WIDTH) -> str:
    """Return the document as text: a line of hardware counters in percent for each step and layer.

    If the counters could not be read, the text gives the reason.
    """
    head = fields([("card", describe_card(document["device"])), ("network", document["network"])], width)
    columns = [Column(name, left=True) for name in ("kernel", "layer")] + [Column(f"{name} %") for name in SHOWN]
    rows = []
    for row in document["rows"]:
        counts = cast(Mapping[str, float | None], row["counts"])
        shares = ["–" if counts[name] is None else f"{counts[name]:.1f}" for name in SHOWN]
        rows.append([f"{row['operation']} {row['name']}", row["layer"], *shares])
    notes = paragraph(document["note"], width) if document["note"] else []
    return "\n".join([*head, "", *(table(columns, rows, width) if rows else []), *notes])
