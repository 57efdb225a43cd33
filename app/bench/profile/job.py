"""``main.py profile``: where the time of the main job goes. Kernels, copies and API calls; a timeline; counters."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from app.bench.profile import api_calls, counters, trace
from app.bench.profile.text import as_text
from app.commands.options.common import network_request, output_request
from app.cuda import device
from app.errors import UserError
from app.interrupts import exit_on_interrupt
from app.network.graph import Graph
from app.planning import tuning
from app.planning.choices import load_graph
from app.planning.matching import Choices
from app.planning.plan import plan
from app.report import publish
from app.runtime.clock import clocked
from app.runtime.overlap import length, overlap
from app.runtime.result import Timing
from data_tools.dataset import load_fashion_mnist

if TYPE_CHECKING:  # needs CuPy
    from app.bench.profile.spans import Span

SCHEMA = "lenet5-inference/profile/1"
RUNS = 20
WARMUP = 5


def profile(options: argparse.Namespace) -> int:
    """Profile the main job's pipeline with parsed options; prints the tables. Raises UserError."""
    with exit_on_interrupt():
        graph, weights, chosen = load_graph(network_request(options))
        reason = device.why_no_gpu()
    if reason is not None:
        raise UserError(f"profile needs an NVIDIA GPU: {reason}")
    with device.gpu_errors():
        document = {"schema": SCHEMA, "weights": str(weights.path), **_profiled(options, graph, chosen)}
    publish(document, as_text, output_request(options))
    return 0


def _profiled(options: argparse.Namespace, graph: Graph, chosen: Choices) -> dict[str, Any]:
    from app.bench.profile.spans import Recorder
    from app.runtime.session import Session, chunk_size

    card = device.describe_gpu()
    images, source = load_images(graph, options.batch)
    chosen = replace(chosen, tuning=tuning.load(card["name"]))
    execution = plan(graph, card["architecture"], chosen, input_dtype=images.dtype.name)
    chunk = chunk_size(options.chunk, options.batch)
    bar = tqdm(total=WARMUP + 3 * RUNS + 1, unit=" runs", disable=not sys.stderr.isatty())
    with Session(execution, chunk=chunk, streams=options.streams) as session, bar:
        outputs = session.outputs(options.batch)

        def run() -> float:
            """One run by the host's clock, ms; enqueued piece by piece, as a graph would show nothing of them."""

            def enqueue_and_wait() -> None:
                session.submit(images, outputs)
                session.wait()

            return clocked(enqueue_and_wait)[1]

        def runs(count: int) -> Timing:
            taken = []
            for _ in range(count):
                taken.append(run())
                bar.update()
            return Timing(tuple(taken))

        runs(WARMUP)
        plain = runs(RUNS)
        with api_calls.counted() as calls:
            counted = runs(RUNS)
        recorder = Recorder(session)
        recorded: list[list[Span]] = []
        samples: list[float] = []
        for index in range(RUNS + 1):
            recorder.start()
            with api_calls.counted() as last_calls, recorder.watching():
                sample = run()
            if index:  # the first run made the events
                samples.append(sample)
                recorded.append(recorder.spans())
            bar.update()
        settings = {"streams": options.streams, "chunk": session.chunk, "fused": not options.no_fuse, "runs": RUNS}
    if options.trace is not None:
        trace.write_timeline(trace.timeline(recorded[-1], last_calls, recorder.zero, card["name"]), options.trace)
    rows, note = _counters(options, recorded[-1]) if options.counters else ([], None)
    return {
        "device": card,
        "network": graph.network.name,
        "images": source,
        "batch": options.batch,
        "precision": options.precision,
        "settings": settings,
        "end_to_end_ms": {"plain": plain.median, "counted": counted.median, "events": Timing(tuple(samples)).median},
        "rows": table(recorded),
        "overlap": overlapping(recorded),
        "api": api_calls.summary(calls, RUNS, sum(counted.samples) / RUNS),
        "trace": None if options.trace is None else str(options.trace),
        "counters": rows,
        "counters_note": note,
    }


def load_images(graph: Graph, batch: int) -> tuple[np.ndarray, str]:
    """Page-locked (N, C, H, W) uint8 images and where they are from: Fashion-MNIST where it fits, else random."""
    from app.cuda.memory import pinned_array

    shape = graph.network.input_shape
    images = pinned_array((batch, *shape), np.uint8)
    if shape == (1, 28, 28):
        try:
            data = load_fashion_mnist("test")
        except UserError:
            pass
        else:
            for at in range(0, batch, len(data.images)):
                part = images[at : at + len(data.images)]
                part[:] = data.images[: len(part)]
            return images, data.source
    generator = np.random.default_rng(0)
    for image in images:
        image[:] = generator.integers(0, 256, shape, np.uint8)
    return images, "random bytes"


def table(runs: Sequence[Sequence[Span]]) -> list[dict[str, Any]]:
    """One row a kernel and a copy, the costliest first; calls, total_ms and bytes are per run."""
    groups: dict[tuple[str, str, str], list[Span]] = {}
    for span in (span for run in runs for span in run):
        groups.setdefault((span.kind, span.layer, span.name), []).append(span)
    whole = sum(span.ms for run in runs for span in run)
    rows = []
    for (kind, layer, name), spans in groups.items():
        total, nbytes = sum(span.ms for span in spans), sum(span.nbytes for span in spans)
        rows.append(
            {
                "kind": kind,
                "layer": layer,
                "name": name,
                "calls": len(spans) / len(runs),
                "total_ms": total / len(runs),
                "share": total / whole if whole else 0.0,
                "min_ms": min(span.ms for span in spans),
                "average_ms": total / len(spans),
                "max_ms": max(span.ms for span in spans),
                "bytes": nbytes / len(runs) if nbytes else None,
                "gbytes_per_s": nbytes / total / 1e6 if nbytes and total else None,
            }
        )
    return sorted(rows, key=lambda row: -row["total_ms"])


def overlapping(runs: Sequence[Sequence[Span]]) -> dict[str, float]:
    """Means over the runs: ms in which copies to and from the host ran, kernels ran, and both did."""
    sums = np.zeros(3)
    for run in runs:
        copies = [(span.start, span.stop) for span in run if span.kind in ("h2d", "d2h")]
        kernels = [(span.start, span.stop) for span in run if span.kind == "kernel"]
        sums += length(copies), length(kernels), overlap(copies, kernels)
    return dict(zip(("copies_ms", "kernels_ms", "both_ms"), (sums / len(runs)).tolist(), strict=True))


def _counters(options: argparse.Namespace, run: Sequence[Span]) -> tuple[list[dict[str, Any]], str | None]:
    """Rows of the counters of the first chunk's kernels, or why there are none."""
    second = [index for index, span in enumerate(run) if span.kind == "h2d"][1:2]
    launched = [span for span in run[: second[0] if second else None] if span.entry]
    counted, note = counters.collect(same_job(options), [span.entry for span in launched])
    rows = [
        {"layer": layer, "name": name, **vars(row), "bound": row.bound}
        for layer, name, row in counters.labelled(counted, launched)
    ]
    return rows, note


def same_job(options: argparse.Namespace) -> list[str]:
    """The arguments that make another process run the same pipeline, whatever the network reads."""
    values = {name: getattr(options, name) for name in ("batch", "streams", "conv", "fc", "pool", "precision")}
    values |= {name: getattr(options, name) for name in ("network", "weights", "chunk")}
    named = [f"--{name}={value}" for name, value in values.items() if value is not None]
    flags = [f"--{name.replace('_', '-')}" for name in ("no_fuse", "latency") if getattr(options, name)]
    return ["profile", *named, *flags]
