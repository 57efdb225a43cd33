"""``main.py bench --scenario``: the application under LoadGen's offline and single-stream scenarios.

Offline: one query holds all samples; the result is samples per second. Single-stream: one sample per query, each issued
when the one before has returned; the result is the 90th percentile of the latency.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from tqdm import tqdm

from app.bench.batch import UNWRITTEN, Batch, check_ready, load_batch
from app.bench.document import heading, utc_date
from app.commands.options.bench import BenchRequest
from app.cuda import device
from app.errors import UserError
from app.interrupts import exit_on_interrupt
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.plan import plan
from app.precision import PRECISIONS
from app.report import publish
from app.runtime.clock import clocked
from app.runtime.request import DEFAULT_STREAMS
from app.runtime.statistics import summary
from app.text import WIDTH, Column, format_ms, table

SCHEMA = "lenet5-inference/scenario/1"
SINGLE_STREAM = "single-stream"
QUERIES = 50  # offline queries, each of the whole batch
WARMUP = 5


def run_scenario(request: BenchRequest, scenario: str) -> int:
    """Measure, print and write. Returns 1 if labels were wrong, else 0. Raises UserError."""
    check_ready(request.network)
    card = device.describe_gpu()
    precisions = [request.precision] if request.precision else PRECISIONS
    with device.gpu_errors():
        batch = load_batch(request.network, request.batch)
        bar = tqdm(precisions, desc=scenario, unit=" precisions", disable=None)
        rows = [measured(scenario, batch, precision, card) for precision in bar]
    document = {
        "schema": SCHEMA,
        "date": utc_date(),
        "scenario": scenario,
        "network": batch.graph.network.name,
        "device": card,
        "images": request.batch,
        "rows": rows,
    }
    publish(document, as_text, request.output)
    return int(any(row["wrong"] for row in rows))


def measured(scenario: str, batch: Batch, precision: str, card: Mapping[str, Any]) -> dict[str, Any]:
    """Measure one precision; return its row of the document: times in ms, or the reason why there are none."""
    with exit_on_interrupt():
        from app.cuda.memory import pinned_array
        from app.runtime.session import Session, default_chunk

    row: dict[str, Any] = {"precision": precision, "reason": "", "wrong": False}
    try:
        execution = plan(batch.graph, card["architecture"], Choices(precision, tuning=tuning.load(card["name"])))
    except UserError as error:
        return row | {"reason": str(error)}
    one = scenario == SINGLE_STREAM
    chunk, streams = (1, 1) if one else (default_chunk(len(batch.images)), DEFAULT_STREAMS)
    with Session(execution, chunk=chunk, streams=streams) as session:
        query = pinned_array((1 if one else len(batch.images), *batch.images.shape[1:]), np.uint8)
        if one:
            labels, latencies = single_stream(session, batch.images, query)
        else:
            labels, latencies, identical, row["unsteady"] = offline(session, batch.images, query)
            row["identical_ms"] = summary(identical)
        kernels = [f"{node.name}: {node.variant.name}" for node in execution.nodes]
        row |= {"latency_ms": summary(latencies), "chunk": session.chunk, "kernels": kernels}
    if not one:
        row["samples_per_s"] = len(labels) / row["latency_ms"]["p50"] * 1e3
    row |= batch.score(labels, execution.arithmetic)
    return row | {"wrong": row["wrong"] or row.get("unsteady", 0) > 0}


def offline(session: Any, images: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, list[float], list[float], int]:
    """Time queries of all images, from page-locked memory to readable labels.

    Every other query repeats the first image: its times should be no shorter. Returns the labels (N,) of the images,
    the ms of each query of all images, the ms of each query of one image, and the number of queries whose labels differ
    from the first query's. query: a page-locked array like the images; they are copied into it outside the clock.
    """
    outputs = session.outputs(len(images))
    labels: np.ndarray | None = None
    latencies: tuple[list[float], list[float]] = ([], [])
    unsteady = 0
    for index in range(2 * (WARMUP + QUERIES)):
        identical = index % 2
        query[:] = images[:1] if identical else images
        outputs.labels.fill(UNWRITTEN)
        _, ms = clocked(partial(session.run, query, outputs))
        found = outputs.labels[: len(images)]
        labels = found.copy() if labels is None else labels
        unsteady += not np.array_equal(found, np.full_like(labels, labels[0]) if identical else labels)
        if index >= 2 * WARMUP:
            latencies[identical].append(ms)
    assert labels is not None
    return labels, *latencies, unsteady


def single_stream(session: Any, images: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Time one query per image, each when the label before is readable; return labels (N,) and ms.

    Each image is copied into ``query`` (1, C, H, W), page-locked, within the clock: a session replays a graph for
    arrays that it has met before.
    """
    outputs = session.outputs(1)
    labels = np.full(len(images), UNWRITTEN, np.uint8)
    latencies = []

    def answer(index: int) -> None:
        np.copyto(query, images[index : index + 1])
        session.run(query, outputs)

    for index in range(-WARMUP, len(images)):
        outputs.labels.fill(UNWRITTEN)
        _, ms = clocked(partial(answer, max(index, 0)))
        if index >= 0:
            latencies.append(ms)
            labels[index] = outputs.labels[0]
    return labels, latencies


def as_text(document: Mapping[str, Any], width: int = WIDTH) -> str:
    """Format the document: a header, and a row for each precision."""
    images, one = f"{document['images']:,}", document["scenario"] == SINGLE_STREAM
    if one:
        what, start = f"{images} queries of one sample, one after another", "an image in host memory"
        shown = "p90 is what the scenario reports"
    else:
        what, start = f"{QUERIES} queries of {images} samples", "images in page-locked memory"
        shown = "identical: p50 with one image repeated"
    pairs = {"latency": f"host clock, from {start} to readable labels; ms, nearest rank; {shown}"}
    title = f"LoadGen's {document['scenario']} scenario: {document['network']}, {what}"
    heads = ("as", *(() if one else ("samples/s",)), "p50", "p90", "p99", *(() if one else ("identical",)))
    columns = [Column(head, left=head in ("as", "")) for head in (*heads, "correct", "other", "")]
    cells = (_cells(row, one) for row in document["rows"])
    return "\n".join([*heading(title, document, pairs, width), *table(columns, cells, width)])


def _cells(row: Mapping[str, Any], one: bool) -> list[str]:
    if row["reason"]:
        return [row["precision"], "–", row["reason"]]
    times = [format_ms(row["latency_ms"][q]) for q in ("p50", "p90", "p99")]
    if not one:
        times = [f"{row['samples_per_s']:,.0f}", *times, format_ms(row["identical_ms"]["p50"])]
    counts = (f"{row['correct']:,}", f"{row['changed']:,}", "WRONG" if row["wrong"] else "")
    return [row["precision"], *times, *counts]
