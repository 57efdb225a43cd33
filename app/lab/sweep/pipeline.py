"""Measure the end-to-end time of the main job over streams and chunk sizes (``main.py sweep --pipeline``)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from app.base.errors import UserError
from app.base.interrupts import exit_on_interrupt, progress_bar
from app.commands.sweep import SweepRequest
from app.drawing.matrix import draw_heat_map
from app.drawing.svg import save_chart
from app.engine.request import STREAMS as DEFAULT_STREAMS
from app.engine.request import default_chunk_size
from app.lab.batch import random_images
from app.main_job.statistics import round_samples, speedup
from app.network.graph import Graph
from app.planning.matching import Choices
from app.planning.plan import ExecutionPlan
from app.records.sweep import PipelinePoint, PipelineSweep
from app.terminal.output import publish_report
from app.terminal.text import WIDTH, Column, format_ms, paragraph, table

STREAMS = tuple(range(1, 9))
CHUNKS = (250, 500, 1000, 1250, 2000, 2500, 5000, 10_000)
REPEAT = 50
WARMUP = 5
Setting = tuple[int, int]  # streams, images per chunk
Figures = Mapping[str, Any]  # ms, p90_ms and samples end to end; overlap: share of copy time while kernels run
Measure = Callable[[int, int], Figures | None]  # from streams and chunk size; None if device memory is too small


def sweep_pipeline(request: SweepRequest, graph: Graph, execution: ExecutionPlan, card: str) -> int:
    """Time the main job for all streams and chunk sizes, print and draw. Return 0. Raises UserError, also on Ctrl-C."""
    with exit_on_interrupt():
        from app.engine.gpu import GpuEngine
        from app.main_job import timing as measure
    default = (DEFAULT_STREAMS, default_chunk_size(request.batch))
    grid = pipeline_grid(request.batch, default)
    images = random_images(graph.network.input_shape, request.batch)

    def run(streams: int, chunk: int) -> Figures | None:
        with GpuEngine(execution, chunk=chunk, streams=streams, always_in_chunks=True) as engine:
            if engine.shrunk:
                return None
            outputs = engine.allocate_outputs(len(images))
            timing = measure.time_end_to_end(engine, images, outputs, REPEAT, WARMUP)
            use = measure.median_pipeline_usage(engine, images, outputs)
            times = {"ms": timing.median, "p90_ms": timing.percentile(90), "samples": round_samples(timing.samples)}
            return {**times, "overlap": use["overlap"]}

    points = measure_all(grid, run)
    if points:
        report = as_document(request, card, points, len(grid), default)
        publish_report(report, as_text, request.output)
        draw_pipeline_heat_map(request, points)
    if len(points) < len(grid):
        raise UserError(f"interrupted after {len(points)} of {len(grid)} points")
    return 0


def draw_pipeline_heat_map(request: SweepRequest, points: Sequence[PipelinePoint]) -> None:
    """Draw the end-to-end times by chunk size and streams if ``--plot`` is given. Raises UserError."""
    times = {(point["chunk"], point["streams"]): point["ms"] for point in points if point["ms"] is not None}
    if request.plot is not None and times:
        title = f"{request.network}, {request.batch:,} images, end to end"
        chart = draw_heat_map(title, "images a chunk", "streams", times)
        save_chart(chart, request.plot / f"sweep_pipeline_{request.network}_heat.svg")


def pipeline_grid(batch: int, default: Setting) -> list[Setting]:
    """Return every combination of streams and chunk size up to the batch, including the default."""
    chunks = sorted({chunk for chunk in (*CHUNKS, default[1]) if chunk <= batch})
    return [(streams, chunk) for chunk in chunks for streams in STREAMS]


def measure_all(grid: Sequence[Setting], measure: Measure) -> list[PipelinePoint]:
    """Return a point for each setting; its ``ms`` is None if device memory is too small. Ctrl-C ends the list early."""
    points: list[PipelinePoint] = []
    with suppress(KeyboardInterrupt), progress_bar(len(grid), unit=" points") as progress:
        for streams, chunk in grid:
            found = measure(streams, chunk) or {"ms": None}
            points.append(cast(PipelinePoint, {"streams": streams, "chunk": chunk, **found}))
            progress(1)
    return points


def as_document(
    request: SweepRequest, card: str, points: Sequence[PipelinePoint], total: int, default: Setting
) -> PipelineSweep:
    """Return the JSON document of these points, the best and the default one. total: number of points to measure."""
    measured = [point for point in points if point["ms"] is not None]
    best = min(measured, key=lambda point: point["ms"] or 0.0, default=None)
    usual = next((point for point in measured if (point["streams"], point["chunk"]) == default), None)
    return {
        "schema": "lenet5-inference/pipeline-sweep/1",
        "card": card,
        "network": request.network,
        "precision": request.precision or Choices.precision,
        "images": request.batch,
        "runs": REPEAT,
        "warmup": WARMUP,
        "finished": len(points),
        "total": total,
        "points": list(points),
        "best": best,
        "default": usual,
        "gain": speedup(usual["ms"], best["ms"]) if usual and best else None,
    }


def as_text(report: PipelineSweep, width: int = WIDTH) -> str:
    """Return the document as text: two tables, by chunk size and number of streams, and the best point."""
    lines = [
        *paragraph(
            f"Pipeline of {report['network']}, {report['images']:,} images, {report['precision']}, on "
            f"{report['card']}, pinned host memory → labels, chunk sizes down, streams across: median ms of "
            f"{report['runs']} runs by the host clock",
            width,
        ),
        *_pipeline_table(report, width, lambda point: format_ms(point["ms"])),
        *paragraph("share of copy time behind kernels", width),
        *_pipeline_table(report, width, lambda point: f"{point['overlap']:.0%}"),
    ]
    best, default = report["best"], report["default"]
    last = ["-: does not fit in device memory"] if any(point["ms"] is None for point in report["points"]) else []
    if best:
        last.append(f"best: --streams {best['streams']} --chunk {best['chunk']}: {format_ms(best['ms'])} ms")
    if default:
        last.append(
            f"default: {default['streams']} streams, chunks of {default['chunk']:,}: {format_ms(default['ms'])} ms; "
            f"the best point is {report['gain']:.3f} × as fast"
        )
    if report["finished"] < report["total"]:
        last.append(f"interrupted after {report['finished']} of {report['total']} points")
    return "\n".join([*lines, *(line for text in last for line in paragraph(text, width))])


def _pipeline_table(report: PipelineSweep, width: int, cell: Callable[[PipelinePoint], str]) -> list[str]:
    """Return a table with ``cell(point)`` for each point: a row per chunk size, a column per number of streams."""
    rows: dict[int, dict[int, str]] = {}
    for point in report["points"]:
        rows.setdefault(point["chunk"], {})[point["streams"]] = "-" if point["ms"] is None else cell(point)
    return table(
        [Column("chunk"), *(Column(str(streams)) for streams in STREAMS)],
        [[f"{chunk:,}", *(cells.get(streams, "") for streams in STREAMS)] for chunk, cells in sorted(rows.items())],
        width,
    )
