"""Time a network end to end with one kernel for all its convolutions, through the application's engine."""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any, cast

import numpy as np

from app.base.clock import time_by_host_clock
from app.base.errors import UserError
from app.base.precision import OFFERED
from app.engine.cpu import CpuEngine
from app.engine.gpu import GpuEngine
from app.engine.request import default_chunk_size
from app.kernels import registry
from app.lab.batch import random_images
from app.lab.bench.results import CPU_NAME, CPU_RUNS
from app.main_job import timing as measure
from app.main_job.result import Timing
from app.main_job.statistics import MOST_RUNS, PATIENCE
from app.network.graph import Graph
from app.planning.matching import Choices
from app.planning.plan import plan
from app.planning.tuning import Tuning
from app.records.bench import Program

# Precisions that some layers do not support come last.
PROGRAMS = sorted(OFFERED, key=lambda row: bool(row.fallback))
SECONDS = 0.5  # measured time per combination
WARMUP = 2
CPU_IMAGES = 1000  # with more, the CPU would take longer than all other measurements


def precision_variant_pairs(graph: Graph, only: set[str] | None) -> list[tuple[str, str]]:
    """Return the (precision, kernel) pairs to time: the ladder's convolutions, or those in ``only``, and ``auto``."""
    convolves = any(step.layer.operation == "conv" for step in graph.steps)
    rows = [row for row in registry.variants("conv") if convolves and row.taught and (not only or row.name in only)]
    return [
        (precision.name, name)
        for precision in PROGRAMS
        for name in [*(row.name for row in rows if precision.dtype in row.dtypes), "auto"]
    ]


def time_whole_program(
    graph: Graph, arch: str, known: Tuning, batch: int, only: set[str] | None, step: Callable[[], object]
) -> list[Program]:
    """Return the time of the network by precision and kernel, from page-locked images to readable labels.

    Small batches run on the CPU, too. known: tuned settings. only: kernels to time, None: all. step: called per pair.
    """
    images = random_images(graph.network.input_shape, batch)
    rows = [_time_on_cpu(graph, images)] if batch <= CPU_IMAGES else []
    for precision, name in precision_variant_pairs(graph, only):
        named = {} if name == "auto" else {"conv": registry.find_variant("conv", name)}
        try:
            found = _time_on_gpu(graph, arch, Choices(precision, True, named, known), images)
        except UserError as error:
            found = {"ms": None, "spread_ms": None, "runs": 0, "reason": str(error)}
        rows.append(cast(Program, {"precision": precision, "conv": name, **found}))
        step()
    return rows


def _time_on_cpu(graph: Graph, images: np.ndarray) -> Program:
    engine = CpuEngine(graph)
    timing = Timing(time_by_host_clock(partial(engine.run, images), CPU_RUNS, warmup=1))
    row = {
        "precision": "fp32",
        "conv": CPU_NAME,
        **timing.json_row,
        "chunk": engine.images_per_chunk(len(images)),
        "threads": engine.thread_count(len(images)),
        "nodes": [f"{step.layer.name}: NumPy" for step in graph.steps],
        "reason": "",
    }
    return cast(Program, row)


def _time_on_gpu(graph: Graph, arch: str, choices: Choices, images: np.ndarray) -> dict[str, Any]:
    execution = plan(graph, arch, choices)
    with GpuEngine(execution, chunk=default_chunk_size(len(images))) as engine:
        outputs = engine.allocate_outputs(len(images))
        once = measure.time_end_to_end(engine, images, outputs, 1, WARMUP).median
        runs = min(max(ceil(SECONDS * 1e3 / once), PATIENCE), MOST_RUNS)
        timing = measure.time_end_to_end(engine, images, outputs, runs, 0)
        nodes = [f"{node.name}: {node.variant.name}" for node in execution.nodes]
        return {**timing.json_row, "chunk": engine.chunk, "nodes": nodes, "reason": ""}
