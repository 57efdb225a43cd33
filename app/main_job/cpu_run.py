"""Classify the batch of the main job on the CPU, by NumPy or ONNX Runtime, and measure the run."""

from collections.abc import Callable
from functools import partial

import numpy as np

from app.base.clock import time_call
from app.base.interrupts import progress_bar
from app.cuda import device
from app.engine.opening import cpu_engine_class
from app.engine.request import DEFAULT_WARMUP, STREAMS, RunRequest
from app.main_job.result import Outcome, Timing, compare_passes, layer_row, repeat_images
from app.network.graph import REFERENCE_CHUNK, Graph
from data_tools.dataset import Dataset


def run_on_cpu(request: RunRequest, graph: Graph, data: Dataset, batch: int, lap: Callable[[str], object]) -> Outcome:
    """Classify ``batch`` images and return labels and measured times. If ``data`` has fewer images, repeat them.

    lap: stores the time since its last call under a name; it is called with ``engine`` when ONNX Runtime is ready.
    """
    engine = cpu_engine_class()(graph, data.images.dtype.name)
    if engine.software:
        lap("engine")
    images = data.images
    labels = np.full(min(batch, len(images)), 255, np.uint8)
    repeat = request.repeat or 1
    samples: list[float] = []
    spent: list[dict[str, float]] = []
    cycle = None
    with progress_bar(repeat * batch, unit=" images", unit_scale=True) as progress:
        first = images[: 4 * REFERENCE_CHUNK * engine.threads]  # enough for every thread to touch its memory
        engine.run(first)  # warm-up
        for _ in range(repeat):
            engine.seconds.clear()
            passes = engine.stream(repeat_images(images, batch), progress=progress)
            cycle, ms = time_call(partial(compare_passes, passes, data.labels, labels))
            samples.append(ms)
            spent.append(engine.seconds.copy())
    threads = engine.thread_count(len(labels))
    layers = tuple(
        layer_row(
            part.name,
            engine.library,
            batch,
            Timing(tuple(seconds[part.name] * 1e3 / threads for seconds in spent)),
            part.flops * batch,
            part.nbytes * batch,
        )
        for part in engine.timed_parts
    )
    slowest = max(layers, key=lambda layer: layer["ms"])
    share = slowest["ms"] / sum(layer["ms"] for layer in layers)
    where = f"{slowest['name']} took {share:.0%} of the layers' time"
    if len(layers) == 1 < len(graph.steps):
        where = f"{engine.library} gives one time for the whole graph, none for a layer"
    convolutions = {step.layer.name for step in graph.steps if step.layer.operation == "conv"}
    return Outcome(
        device={**device.describe_cpu(threads), **engine.software},
        settings={"threads": threads, "chunk": engine.images_per_chunk(len(labels)), "runs": repeat},
        labels=labels,
        cycle=cycle if batch > len(images) else None,
        end_to_end=Timing(tuple(samples)),
        layers=layers,
        op_times=tuple(layer for layer in layers if layer["name"] in convolutions),
        limit=f"limited by compute ({threads} threads): {where}",
        notes=gpu_only_option_notes(request),
    )


def gpu_only_option_notes(request: RunRequest) -> tuple[str, ...]:
    """Return one note that names the given options that apply only to a GPU, or () if none was given."""
    given = {"--chunk": request.pipeline.chunk is not None, "--streams": request.pipeline.streams != STREAMS}
    given |= {"--no-fuse": not request.network.fuse, "--no-sparse": not request.network.sparse}
    given |= {"--warmup": request.warmup != DEFAULT_WARMUP}
    names = [name for name, is_given in given.items() if is_given]
    return (f"{', '.join(names)}: for the GPU, without effect on the CPU",) if names else ()
