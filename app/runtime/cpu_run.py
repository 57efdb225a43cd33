"""The main job on the CPU: the NumPy references over the batch, with per-layer times."""

from collections.abc import Callable, Iterator

import numpy as np

from app.cuda import device
from app.errors import UserError
from app.network.graph import REFERENCE_CHUNK, Graph
from app.planning.request import NetworkRequest
from app.runtime.clock import clocked
from app.runtime.cpu_session import CpuSession, progress_bar
from app.runtime.onnx_session import cpu_session
from app.runtime.request import DEFAULT_STREAMS, DEFAULT_WARMUP, RunRequest
from app.runtime.result import LayerTime, Outcome, Timing, count_passes
from data_tools.dataset import Dataset


def run_on_cpu(
    request: RunRequest, graph: Graph, data: Dataset, batch: int, lap: Callable[[str], object] = lambda _: None
) -> Outcome:
    """Classify ``batch`` of the images, in several passes if there are fewer, and measure.

    lap: called with ``engine`` when another engine than NumPy is ready. Raises UserError for options of the GPU alone.
    """
    check_network_options(request.network)
    if request.compare is not None:
        raise _for_the_gpu(f"--compare {request.compare}")
    session = cpu_session(graph)
    if session.software:
        lap("engine")
    images = data.images
    labels = np.full(min(batch, len(images)), 255, np.uint8)
    repeat = request.repeat or 1
    samples: list[float] = []
    spent: list[dict[str, float]] = []
    cycle = None
    with progress_bar(repeat * batch, unit=" images", unit_scale=True) as progress:
        first = images[: 4 * REFERENCE_CHUNK * session.threads]  # enough for every thread to touch its memory
        session.run(first, np.empty(len(first), np.uint8))  # warm-up
        for _ in range(repeat):
            session.seconds.clear()
            cycle, ms = clocked(lambda: count_passes(_passes(session, images, batch, progress), data.labels, labels))
            samples.append(ms)
            spent.append(session.seconds.copy())
    threads = session.threads_for(len(labels))
    layers = tuple(
        LayerTime(
            name=part.name,
            kernel=session.engine,
            images=batch,
            timing=Timing(tuple(seconds[part.name] * 1e3 / threads for seconds in spent)),
            flops=part.flops * batch,
            nbytes=part.nbytes * batch,
        )
        for part in session.parts
    )
    slowest = max(layers, key=lambda layer: layer.timing.median)
    share = slowest.timing.median / sum(layer.timing.median for layer in layers)
    where = f"{slowest.name} took {share:.0%} of the layers' time"
    if len(layers) == 1 < len(graph.steps):
        where = f"{session.engine} gives one time for the whole graph, none for a layer"
    convolutions = {step.layer.name for step in graph.steps if step.layer.operation == "conv"}
    return Outcome(
        device={**device.describe_cpu(threads), **session.software},
        settings={"threads": threads, "chunk": session.chunk_for(len(labels)), "runs": repeat},
        labels=labels,
        cycle=cycle if batch > len(images) else None,
        end_to_end=Timing(tuple(samples)),
        layers=layers,
        op_times=tuple(layer for layer in layers if layer.name in convolutions),
        limit=f"limited by compute ({threads} threads): {where}",
        notes=_without_effect(request),
    )


def check_network_options(network: NetworkRequest) -> None:
    """Raise UserError for options of the GPU alone."""
    for option, name in network.kernels.items():
        if name != "auto":
            raise UserError(f"--{option} {name} chooses a GPU kernel: leave it out on the CPU")
    for given, option in (
        (network.latency, "--latency"),
        (network.precision not in ("auto", "fp32"), f"--precision {network.precision}"),
    ):
        if given:
            raise _for_the_gpu(option)


def _for_the_gpu(option: str) -> UserError:
    return UserError(f"{option} is for the GPU: leave it out on the CPU")


def _without_effect(request: RunRequest) -> tuple[str, ...]:
    """Return a note on the options that have an effect on a GPU only, if any were given."""
    given = {"--chunk": request.pipeline.chunk is not None, "--streams": request.pipeline.streams != DEFAULT_STREAMS}
    given |= {"--no-fuse": not request.network.fuse, "--warmup": request.warmup != DEFAULT_WARMUP}
    names = [name for name, is_given in given.items() if is_given]
    return (f"{', '.join(names)}: for the GPU, without effect on the CPU",) if names else ()


def _passes(
    session: CpuSession, images: np.ndarray, batch: int, progress: Callable[[int], None]
) -> Iterator[tuple[int, np.ndarray]]:
    """Run over the images as often as the batch needs; yield the number and the labels of each pass."""
    for start in range(0, batch, len(images)):
        labels = np.empty(min(batch - start, len(images)), np.uint8)
        session.run(images[: len(labels)], labels, progress)
        yield len(labels), labels
