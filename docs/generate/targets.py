"""Write tables that compare measured times with target times and with the times that steps were expected to take."""

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path

from app.base.precision import SHORT, SINGLE
from app.kernels import registry
from app.kernels.plain_problems import ITEMSIZE
from app.lab.bench.results import LIBRARY
from app.lab.document import fastest_row, first_row
from app.layers import Conv2d
from app.main_job.statistics import speedup
from app.network.definitions import NETWORKS
from app.terminal.text import format_factor, format_ms
from docs.generate.figures import Bench, Figures
from docs.generate.tables import markdown_table, row_label, table_from_lines, yes_or_no

# Network → ms of conv1 + conv2 for 10,000 images: longest allowed in float32; cuDNN before the work began, in float32;
# the same in float16, channels-last, which is also the longest allowed in float16.
TARGETS = {
    "lenet5": (2.0, 2.07, 0.54),
    "fa19": (5.0, 10.6, 3.16),
    "k7": (8.5, 19.8, 5.05),
    "minidnn86": (4.0, 13.6, 5.40),
}
FP32_RATE = 51.0  # TFLOP/s of large fp32 matrix products on an H100, from which the targets were set
FIRST_LAYER = 1.6  # longest allowed ÷ the larger of the times of arithmetic and of writing the output
AUTO = 0.03  # auto may be slower than the best single choice by this share
# Times of the ladder's later steps, written before they first ran on a card and unchanged since.
EXPECTED, EXPECTED_NETWORKS = Path(__file__).parents[1] / "expected.json", ("lenet5", "fa19")


def targets_table(figures: Figures) -> str:
    """Return a table of target and measured times: all convolutions, first layers, the program with ``auto``."""
    benches = [figures.bench(network) for network in TARGETS]
    sums = "network | type | best variant | target ms | measured ms | met | floor ms"
    firsts = "network | kernel | arithmetic ms | writing ms | measured ms | × the larger | met"
    return "\n\n".join(
        [
            "The times are for conv1 and conv2 together and 10,000 images. The floor is a lower bound of the time: "
            "for each convolution, the larger of the times for the arithmetic and for moving each array once, at the "
            "measured peaks. cuDNN was measured twice: before, when the targets were set, and here, with our kernels.",
            table_from_lines(
                f"{sums} | cuDNN before, ms | cuDNN here, ms", [row for bench in benches for row in _sum_rows(bench)], 3
            ),
            f"A first layer in fp32 may take at most {FIRST_LAYER} × the larger of two times: writing its output once "
            f"at the measured copy rate, and its arithmetic at {FP32_RATE:g} TFLOP/s. Large fp32 matrix products reach "
            f"{FP32_RATE:g} TFLOP/s on the card, and the targets are based on this rate. Instead of it, the last "
            "two columns use the arithmetic rate that was measured with operands in registers.",
            table_from_lines(
                f"{firsts} | arithmetic in registers ms | × the larger", map(_first_layer_row, benches), 2
            ),
            f"The whole program with `auto` may be at most {AUTO:.0%} slower than with the best single choice:",
            table_from_lines(
                "network | as | best single choice | ms | auto ms | auto ÷ best | met",
                [row for bench in benches for row in _auto_choice_rows(bench)],
                3,
            ),
        ]
    )


def _within_limit_cell(value: float | None, most: float) -> str:
    return "" if value is None else yes_or_no(value <= most)


def _sum_rows(bench: Bench) -> Iterator[str]:
    most, cudnn32, cudnn16 = TARGETS[bench.network]
    for dtype, target, known in (("float32", most, cudnn32), ("float16", cudnn16, cudnn16)):
        best = bench.best_total(dtype)
        cudnn = first_row(bench.document["totals"], kind=LIBRARY, step=None, dtype=dtype)
        ms = best.get("sum_ms")
        yield (
            f"`{bench.network}` | {SHORT[dtype]} | {row_label(best)} | ≤ {target:g} | {format_ms(ms)} | "
            f"{_within_limit_cell(ms, target)} | {format_ms(bench.peak_bound_ms(dtype))} | {known:g} | "
            f"{format_ms(cudnn.get('sum_ms'))}"
        )


def _first_layer_row(bench: Bench) -> str:
    network, images, peaks = NETWORKS[bench.network], bench.convolution_tables[0]["images"], bench.document["peaks"]
    step = next(step for step in network.steps if isinstance(step.layer, Conv2d))
    arithmetic, registers = (
        step.layer.flops(step.in_shape) * images / rate / 1e9 for rate in (FP32_RATE, peaks["tflops"]["float32"])
    )
    writing = prod(step.out_shape) * images * ITEMSIZE["float32"] / peaks["gbytes_per_s"] / 1e6
    best = bench.fastest_row_of_item(bench.convolution_tables[0]["item"], "float32")
    slower, than_registers = (speedup(best.get("ms"), max(least, writing)) for least in (arithmetic, registers))
    return (
        f"`{bench.network}` | {row_label(best)} | {format_ms(arithmetic)} | {format_ms(writing)} | "
        f"{format_ms(best.get('ms'))} | {format_factor(slower)} | {_within_limit_cell(slower, FIRST_LAYER)} | "
        f"{format_ms(registers)} | {format_factor(than_registers)}"
    )


def _auto_choice_rows(bench: Bench) -> Iterator[str]:
    for precision in (row.name for row in SINGLE):
        rows = [row for row in bench.document["whole_program"] if row["precision"] == precision]
        auto = first_row(rows, conv="auto")
        best = fastest_row(row for row in rows if row["conv"] != "auto")
        if auto.get("ms") and best:
            slower = auto["ms"] / best["ms"]
            yield (
                f"`{bench.network}` | {precision} | {best['conv']} | {format_ms(best['ms'])} | "
                f"{format_ms(auto['ms'])} | {slower:.3f} | {_within_limit_cell(slower, 1 + AUTO)}"
            )


def expected_times_table(figures: Figures) -> str:
    """Return a table, by step of the ladder, of the times expected before it ran, those measured, and their ratios."""
    heads = (part for name in EXPECTED_NETWORKS for part in (f"`{name}` expected, ms", "measured, ms", "÷"))
    return markdown_table(["step", "layer", *heads], _expected_rows(figures), 2)


def _expected_rows(figures: Figures) -> Iterator[list[str]]:
    for row in json.loads(EXPECTED.read_text(encoding="utf-8")):
        step = registry.find_variant(row["operation"], row["name"])
        assert step is not None
        cells = [f"{step.step} {step.name}", row["item"]]
        for network in EXPECTED_NETWORKS:
            times, ms = row.get(network), figures.benches[network].row(row["item"], row["name"]).get("ms")
            if times is None or ms is None:
                cells += ["", format_ms(ms), ""]
                continue
            nearest = min(max(ms, min(times)), max(times))
            cells += [" to ".join(f"{time:g}" for time in times), format_ms(ms), format_factor(ms / nearest)]
        yield cells
