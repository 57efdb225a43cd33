"""The main job on a GPU: stream the batch, then measure its parts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np

from app.cuda import device
from app.cuda.memory import DeviceMemoryError
from app.errors import UserError
from app.network.graph import Graph
from app.planning import tuning
from app.planning.choices import choices
from app.planning.coarser import coarser_plan
from app.planning.plan import ExecutionPlan, notice, plan
from app.runtime import timing as measure
from app.runtime.defaults import DEFAULT_STREAMS, DEFAULT_WARMUP
from app.runtime.result import Coarser, Cycle, Outcome, Timing
from app.runtime.session import Session, chunk_size
from app.runtime.stream_buffers import Outputs

REPEAT, REPEAT_FEW = 100, 1000  # of batches, and of those up to FEW images: a percentile wants many
FEW = 100
LAYER_REPEAT = 20


def _session(options: argparse.Namespace, execution: ExecutionPlan, chunk: int) -> Session:
    """As the options say: a chunk size that was asked for is used."""
    return Session(execution, chunk=chunk, streams=options.streams, always_in_chunks=options.chunk is not None)


def _timed(options: argparse.Namespace, session: Session, images: np.ndarray, outputs: Outputs) -> Timing:
    """End to end, as often as the options say."""
    few = len(images) <= FEW
    return measure.end_to_end(
        session, images, outputs, options.repeat or (REPEAT_FEW if few else REPEAT), options.warmup
    )


def run_on_gpu(
    options: argparse.Namespace,
    graph: Graph,
    images: np.ndarray,
    truth: np.ndarray | None,
    batch: int,
    lap: Callable[[str], None],
) -> Outcome:
    """Classify ``batch`` of the (N, C, H, W) images, again and again if there are fewer, and measure."""
    card = device.describe_gpu()
    chosen = choices(options, tuning.load(card["name"]))
    execution = plan(graph, card["architecture"], chosen, input_dtype=images.dtype.name)
    one_pass = images[:batch]
    chunk = chunk_size(options.chunk, len(one_pass), streamed=batch > len(images))
    with _session(options, execution, chunk) as session:
        lap("kernels")
        outputs = session.outputs(len(one_pass))
        cycle = None
        if batch > len(images):
            timing, cycle = _cycled(session, images, truth, batch, outputs, options.repeat or 1)
        else:
            timing = _timed(options, session, one_pass, outputs)
        labels = outputs.labels.copy()
        direct = session.direct is not None and session.replays(one_pass, outputs)
        use = None if cycle else measure.typical_usage(session, one_pass, outputs)
        resident = measure.on_card(session, one_pass, LAYER_REPEAT, options.warmup)
        note = notice(execution, chosen)
        notes = [note] if note else []
        if direct and options.streams != DEFAULT_STREAMS:
            notes.append("--streams: without effect where the first kernel reads the images; add --chunk")
        if cycle is not None and options.warmup != DEFAULT_WARMUP:
            notes.append("--warmup: without effect on passes over the data, of which one goes before")
        if session.shrunk:
            notes.append(f"chunks of {chunk:,} images do not fit in device memory: {session.chunk:,} were used")
        if resident.images < len(one_pass):
            notes.append(f"layers were timed on {resident.images:,} images, as many as fit on the card at once")
        found = Outcome(
            device=card,
            settings={
                "streams": options.streams,
                "chunk": session.chunk,
                "images": "read by the first kernel" if direct else "copied in chunks",
                "fused": not options.no_fuse,
                "runs": len(timing.samples),
                "warmup": options.warmup if cycle is None else 1,
                "layer_runs": LAYER_REPEAT,
            },
            labels=labels,
            cycle=cycle,
            end_to_end=timing,
            layers=resident.layers,
            op_times=resident.op_times,
            on_card=resident.whole,
            on_card_images=resident.images,
            usage=use,
            limit=use.verdict if use and not direct else _verdict(timing.median / batch, resident),
            device_bytes=session.device_bytes,
            peak_device_bytes=session.device_bytes + resident.device_bytes,
            notes=tuple(notes),
            arithmetic=execution.arithmetic,
            raw_copy=resident.raw_copy if resident.images == len(one_pass) and cycle is None else None,
        )
    if cycle is not None:
        return found
    # When the session above has given its memory back.
    compared = coarser_plan(graph, card["architecture"], chosen, input_dtype=images.dtype.name)
    return found if compared is None else _with_coarser(options, compared, one_pass, found)


def _verdict(per_image: float, resident: measure.OnCard) -> str:
    """What limits a run that is not cut into phases: its first kernel reads over the bus, or pass follows on pass.

    per_image: ms.
    """
    copy, compute = (timing.median / resident.images for timing in (resident.raw_copy, resident.whole))
    what, remedy = ("the bus", "faster kernels do not help") if copy > compute else ("compute", "faster kernels help")
    return (
        f"limited by {what}: the images' bytes alone take {copy / per_image:.0%} of the run, the kernels alone "
        f"{compute / per_image:.0%}, and both go on together; {remedy}"
    )


def _with_coarser(options: argparse.Namespace, execution: ExecutionPlan, images: np.ndarray, found: Outcome) -> Outcome:
    """The outcome, with the same batch in float16 beside it; where there is no room for that, as it is."""
    try:
        with _session(options, execution, chunk_size(options.chunk, len(images))) as session:
            outputs = session.outputs(len(images))
            timing = _timed(options, session, images, outputs)
            peak = max(found.peak_device_bytes, session.device_bytes)
            return replace(found, coarser=Coarser(timing, outputs.labels.copy()), peak_device_bytes=peak)
    except (UserError, DeviceMemoryError):
        return found


def _cycled(
    session: Session, images: np.ndarray, truth: np.ndarray | None, batch: int, outputs: Outputs, repeat: int
) -> tuple[Timing, Cycle]:
    """Stream the batch in passes; the first pass's labels go to ``outputs``, later ones are held against them."""
    from tqdm import tqdm  # not worth its import where nothing is streamed

    pair = (session.outputs(len(images)), session.outputs(len(images)))
    session.run(images, outputs)  # warm-up
    outputs.labels.fill(255)
    samples: list[float] = []
    correct = unsteady = 0
    with tqdm(total=repeat * batch, unit=" images", unit_scale=True, disable=not sys.stderr.isatty()) as progress:
        for _ in range(repeat):
            correct = 0
            start = perf_counter()
            for index, (count, labels) in enumerate(session.cycle(images, batch, pair)):
                if index == 0:
                    outputs.labels[:] = labels
                unsteady += not np.array_equal(labels, outputs.labels[:count])
                if truth is not None:
                    correct += int((labels == truth[:count]).sum())
                progress.update(count)
            samples.append((perf_counter() - start) * 1e3)
    return Timing(tuple(samples)), Cycle(None if truth is None else correct, batch, unsteady)
