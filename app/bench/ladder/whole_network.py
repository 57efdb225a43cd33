"""Time a network end to end with one variant for all its convolutions, through the application's session."""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from app.bench.batch import random_images
from app.bench.ladder.results import CPU_NAME, CPU_RUNS
from app.bench.stop import MOST_RUNS, PATIENCE
from app.errors import UserError
from app.kernels import registry
from app.network.graph import Graph
from app.planning.matching import Choices
from app.planning.plan import plan
from app.planning.tuning import Tuning
from app.precision import OFFERED
from app.runtime import timing as measure
from app.runtime.clock import host_timed
from app.runtime.cpu_session import CpuSession
from app.runtime.request import DEFAULT_STREAMS
from app.runtime.session import Session, default_chunk

PROGRAMS = sorted(OFFERED, key=lambda row: bool(row.fallback))  # precisions that not every single layer has last
SECONDS = 0.5  # measured time per combination
WARMUP = 2
CPU_IMAGES = 1000  # with more, the processor would take longer than the card for everything else


def combinations(graph: Graph, only: set[str] | None) -> list[tuple[str, str]]:
    """Return pairs (precision, variant name): every convolution variant in each of its precisions, and ``auto``."""
    convolves = any(step.layer.operation == "conv" for step in graph.steps)
    rows = [row for row in registry.variants("conv") if convolves and (not only or row.name in only)]
    return [
        (precision.name, name)
        for precision in PROGRAMS
        for name in [*(row.name for row in rows if precision.dtype in row.dtypes), "auto"]
    ]


def whole_program(
    graph: Graph, arch: str, known: Tuning, batch: int, only: set[str] | None, step: Callable[[], object]
) -> list[dict[str, Any]]:
    """Time each combination end to end, from page-locked images to readable labels; return rows of the document.

    Small batches are timed on the processor, too. step: called after each combination.
    """
    images = random_images(graph.network.input_shape, batch)
    rows = [_on_cpu(graph, images)] if batch <= CPU_IMAGES else []
    for precision, name in combinations(graph, only):
        named = {} if name == "auto" else {"conv": registry.find("conv", name)}
        try:
            found = _on_gpu(graph, arch, Choices(precision, True, named, known), images)
        except UserError as error:
            found = {"ms": None, "spread_ms": None, "runs": 0, "reason": str(error)}
        rows.append({"precision": precision, "conv": name, **found})
        step()
    return rows


def _on_cpu(graph: Graph, images: np.ndarray) -> dict[str, Any]:
    session, labels = CpuSession(graph), np.empty(len(images), np.uint8)
    timing = host_timed(partial(session.run, images, labels), CPU_RUNS, warmup=1)
    return {
        "precision": "fp32",
        "conv": CPU_NAME,
        **timing.row,
        "chunk": session.chunk_for(len(images)),
        "threads": session.threads_for(len(images)),
        "nodes": [f"{step.layer.name}: NumPy" for step in graph.steps],
        "reason": "",
    }


def _on_gpu(graph: Graph, arch: str, choices: Choices, images: np.ndarray) -> dict[str, Any]:
    execution = plan(graph, arch, choices)
    with Session(execution, chunk=default_chunk(len(images)), streams=DEFAULT_STREAMS) as session:
        outputs = session.outputs(len(images))
        once = measure.end_to_end(session, images, outputs, 1, WARMUP).median
        runs = min(max(ceil(SECONDS * 1e3 / once), PATIENCE), MOST_RUNS)
        timing = measure.end_to_end(session, images, outputs, runs, 0)
        nodes = [f"{node.name}: {node.variant.name}" for node in execution.nodes]
        return {**timing.row, "chunk": session.chunk, "nodes": nodes, "reason": ""}
