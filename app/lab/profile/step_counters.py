"""What Nsight Compute counts of one step of the ladder, so that a prediction can be held against it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.lab.profile.counters import launches, number


@dataclass(frozen=True)
class Counter:
    """One hardware counter: what it says, Nsight Compute's name for it, and what it counts."""

    words: str
    metric: str
    unit: Literal["warps", "threads", "bytes", "%"]


COUNTERS: dict[str, Counter] = {
    "instructions": Counter("instructions", "smsp__inst_executed.sum", "warps"),
    "multiply_adds": Counter("multiply-adds", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "threads"),
    "global_loads": Counter("loads from global memory", "smsp__inst_executed_op_global_ld.sum", "warps"),
    "shared_loads": Counter("loads from shared memory", "smsp__inst_executed_op_shared_ld.sum", "warps"),
    "shared_cycles": Counter("cycles of shared loads", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "warps"),
    "bank_conflicts": Counter(
        "cycles lost by bank conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", "warps"
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
# What one event of a unit is per output of a thread: an instruction of a warp is one of each of its 32 threads.
WEIGHTS = {"warps": 32, "threads": 1, "bytes": 1}


def per_output(name: str, value: float, outputs: float) -> float:
    """Return a counted value as pages show it: per output, or in percent."""
    unit = COUNTERS[name].unit
    return value if unit == "%" else value * WEIGHTS[unit] / outputs


def counted(text: str, layers: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what ncu's table counts of each layer. layers: the layer of each launch, in order.

    launches: how many; counts: events added up over the layer's launches, and percent of the launch with the most
    instructions; None where the tool gave no number. Empty unless the table has every launch.
    """
    rows = launches(text)
    if len(rows) != len(layers):
        return {}
    found = {}
    for layer in dict.fromkeys(layers):
        own = [row for row, name in zip(rows, layers, strict=True) if name == layer]
        instructions = COUNTERS["instructions"].metric
        largest = max(own, key=lambda row: number(row.get(instructions, "")) or 0)
        counts = {
            name: _value([largest] if counter.unit == "%" else own, counter.metric)
            for name, counter in COUNTERS.items()
        }
        found[layer] = {"launches": len(own), "counts": counts}
    return found


def _value(rows: Sequence[Mapping[str, str]], metric: str) -> float | None:
    values = [number(row.get(metric, "")) for row in rows]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
