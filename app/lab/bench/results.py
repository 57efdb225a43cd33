"""Define the results of ``bench`` as records, and derive figures from them by pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import cast

from app.base.frozen import Frozen
from app.base.precision import BY_DTYPE, INTEGERS
from app.kernels.plain_problems import bytes_moved
from app.kernels.problems import (
    ConvPairProblem,
    ConvProblem,
    LinearPairProblem,
    LinearProblem,
    PairProblem,
    Problem,
    tuning_key,
)
from app.main_job.statistics import speedup
from app.records import bench as records
from app.records.bench import AchievedRates, Ratios, Total
from app.records.parts import Peaks

# Values of Result.kind; OURS: a kernel of the ladder, FILE: a user's kernel.
CPU, LIBRARY, OURS, DEBUG, FILE = "cpu", "library", "kernel", "debug", "file"
CPU_NAME, CPU_RUNS = "CPU, NumPy", 3


class Result(Frozen):
    """The result of a kernel or library for a problem: its time in ms for the table's images, or why there is none.

    step: in the ladder; None for the CPU and cuDNN. error: worst error ÷ allowed error. settings: the kernel's
    parameters that differ from its defaults. note: a remark on the time. wrong: whether the result was wrong or the
    kernel failed. instructions: instruction family of the registry row; empty if unknown. work: products that the
    kernel computes ÷ those of the layer.
    """

    kind: str
    name: str
    dtype: str
    step: int | None = None
    ms: float | None = None
    spread_ms: float | None = None
    runs: int = 0
    samples: Sequence[float] = ()
    error: float | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    reason: str = ""
    wrong: bool = False
    instructions: str = ""
    work: float = 1.0


class Table(Frozen):
    """The results of every kernel and library for one item (layers computed together) and batch size.

    problems: arithmetic type → problem. is_op: whether the item is one convolution alone.
    """

    item: str
    operation: str
    is_op: bool
    images: int
    problems: Mapping[str, Problem]
    rows: tuple[Result, ...]


def peak_name(instructions: str, dtype: str) -> str:
    """Return the name of the peak to compare with a kernel that uses these instructions.

    For mma it is the type; for fma it is float32. Other families have names such as ``float16 hfma2`` and ``float16
    wgmma``. int8 is also compared with ``float16 wgmma``, and so is tfloat32, which wgmma multiplies in float16.
    """
    in_half = dtype == "float16x2" or (dtype == "tfloat32" and instructions == "wgmma")
    dtype = BY_DTYPE[dtype].fallback if dtype == INTEGERS else "float16" if in_half else dtype
    return {"fma": "float32", "mma": dtype}.get(instructions, f"{dtype} {instructions}")


def executed_operations(problem: Problem) -> int:
    """Return the FLOPs per image that the card executes, which may be more than the layers need.

    fp32x multiplies the float16 parts of both operands, except low part × low part: three products for one, two if one
    operand has a single part (a byte, or a weight exact in float16), one if both have. In int8, a product of the second
    convolution takes half the time of one in float16 and counts half.
    """
    if isinstance(problem, ConvPairProblem) and problem.dtype == INTEGERS:
        return problem.first.flops + problem.second.flops // 2
    match problem:
        case ConvPairProblem() | LinearPairProblem():
            layers, exact = [problem.first, problem.second], problem.exact
        case ConvProblem():
            layers, exact = [problem], False
        case LinearProblem():
            layers, exact = [problem], problem.exact
        case _:
            return problem.flops
    return sum(layer.flops * _count_multiplications(layer, exact) for layer in layers)


def _count_multiplications(layer: ConvProblem | LinearProblem, exact: bool) -> int:
    return 1 if layer.dtype != "float16x2" else 3 - (layer.input_dtype == "uint8") - exact


def achieved_rates(
    problem: Problem, dtype: str, images: int, ms: float, peaks: Peaks, instructions: str = "", work: float = 1.0
) -> AchievedRates:
    """Return TFLOP/s, GB/s, FLOPs per byte, and the share of the peak that bounds a kernel with a batch in ``ms``.

    instructions: family of the multiplying instructions; empty: the fastest of the type. work: products that the kernel
    computes ÷ those of the layer. The TFLOP/s count the layer's products, the share of the peak counts the kernel's.
    """
    flops, nbytes = problem.flops * images, bytes_moved(problem.arguments(), images)
    tflops, gbytes = flops / ms / 1e9, nbytes / ms / 1e6
    # Pooling, activations and so on compute in float32, whatever the storage type.
    multiplies = isinstance(problem, ConvProblem | LinearProblem | PairProblem)
    families = (instructions,) if instructions else ("mma", "wgmma") if dtype != "tfloat32" else ("mma",)
    if dtype == "float16x2" and isinstance(problem, ConvProblem | LinearProblem) and instructions == "mma":
        dtype = "tfloat32"  # a single layer splits its operands into two tfloat32 numbers
    known = [peaks["tflops"].get(peak_name(family if multiplies else "fma", dtype)) for family in families]
    peak = max((rate for rate in known if rate), default=None)
    arithmetic = work * executed_operations(problem) * images / ms / 1e9 / peak if peak else 0.0
    memory = gbytes / peaks["gbytes_per_s"]
    return {
        "tflops": tflops,
        "gbytes_per_s": gbytes,
        "intensity": flops / nbytes,
        "share": max(arithmetic, memory),
        "limit": "arithmetic" if arithmetic > memory else "memory",
    }


def library_time_ms(results: Sequence[Result], dtype: str) -> float | None:
    """Return the time in ms of the library to compare with: cuBLAS if it ran in that type, otherwise cuDNN."""
    timed = [row for row in results if row.kind == LIBRARY and row.dtype == dtype and row.ms is not None]
    timed.sort(key=lambda row: row.step is None)  # the registry's library row has a step, cuDNN's has none
    return timed[0].ms if timed else None


def previous_step_ms(results: Sequence[Result], index: int) -> float | None:
    """Return the time in ms of the last step before row ``index`` that was timed in its data type; None without one.

    results: in the order of the ladder; a debug row, which is no step of its own, follows its kernel's row.
    """
    row = results[index]
    if row.step is None or row.kind not in (OURS, DEBUG):
        return None
    steps = (other for other in reversed(results[:index]) if other.kind == OURS and other.dtype == row.dtype)
    return next((step.ms for step in steps if step.ms is not None), None)


def convolution_totals(tables: Sequence[Table]) -> list[Total]:
    """Return the summed times of single convolutions for each kernel or library, in the order of the tables.

    Key ``ops``: item → ms. ``sum_ms``: None unless every convolution was timed with the same number of images.
    """
    ops = [table for table in tables if table.is_op]
    rows: dict[tuple[str, str], tuple[Result, dict[str, float]]] = {}
    for table in ops:
        for row in table.rows:
            if row.ms is not None:
                rows.setdefault((row.name, row.dtype), (row, {}))[1][table.item] = row.ms
    comparable = len({table.images for table in ops}) == 1
    summed = [
        replace(row, ms=sum(each.values()) if comparable and len(each) == len(ops) else None)
        for row, each in rows.values()
    ]
    return [
        {
            "kind": row.kind,
            "name": row.name,
            "dtype": row.dtype,
            "step": row.step,
            "ops": each,
            "sum_ms": row.ms,
            **_speed_ratios(summed, index),
        }
        for index, (row, (_, each)) in enumerate(zip(summed, rows.values(), strict=True))
    ]


def _speed_ratios(results: Sequence[Result], index: int) -> Ratios:
    row = results[index]
    return {
        "library_ratio": speedup(library_time_ms(results, row.dtype), row.ms),
        "previous_ratio": speedup(previous_step_ms(results, index), row.ms),
    }


def table_record(table: Table, peaks: Peaks) -> records.Table:
    """Return the table with the figures derived from its times, as a record of the JSON document."""
    rows: list[records.Row] = []
    for index, row in enumerate(table.rows):
        figures = None
        if row.ms is not None:
            problem, images = table.problems[row.dtype], table.images
            figures = {
                **achieved_rates(problem, row.dtype, images, row.ms, peaks, row.instructions, row.work),
                **({"share": None} if row.kind == CPU else {}),  # shares are of the card's peaks
                **_speed_ratios(table.rows, index),
            }
        found = vars(row) | {"settings": dict(row.settings), "samples": [*row.samples], "rates": figures}
        rows.append(cast(records.Row, found))
    return {
        "item": table.item,
        "operation": table.operation,
        "is_op": table.is_op,
        "images": table.images,
        "problems": {dtype: tuning_key(problem) for dtype, problem in table.problems.items()},
        "rows": rows,
    }
