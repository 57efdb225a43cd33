"""Measure on the GPU: layers, op times, whole pass on the card, end to end, and the trace of one run.

Kernels and copies are timed with CUDA events; end-to-end time with the host clock, from the call to readable labels,
with an idle device at the start. All times in milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.events import EventPair
from app.cuda.memory import DeviceMemoryError, device_array, is_pinned, pinned_copy, uploaded
from app.errors import UserError
from app.kernels.facts import alone, bytes_moved
from app.kernels.launch import Kernel, Launch
from app.kernels.problems import ConvProblem
from app.planning.matching import Node
from app.planning.plan import IMAGES
from app.runtime.clock import host_timed
from app.runtime.overlap import Timeline, Usage, usage
from app.runtime.result import LayerTime, Timing
from app.runtime.session import Session, pieces
from app.runtime.stream_buffers import Outputs, StreamBuffers

TRACES = 9


@dataclass(frozen=True)
class OnCard:
    """Measurements with ``images`` images already on the card, as one chunk, without transfers.

    op_times: each convolution and its bias alone, output unpooled, as in the seed systems' reports. raw_copy: one copy
    of the images' bytes from page-locked memory to the card.
    """

    images: int
    whole: Timing
    layers: tuple[LayerTime, ...]
    op_times: tuple[LayerTime, ...]
    device_bytes: int
    raw_copy: Timing


def timed(launch: Callable[[], None], stream: cupy.cuda.Stream, repeat: int, warmup: int) -> Timing:
    """Time a launch by events around it, ``repeat`` times after ``warmup`` untimed ones."""
    for _ in range(warmup):
        launch()
    pairs = [EventPair() for _ in range(repeat)]
    for pair in pairs:
        pair.around(launch, stream)
    stream.synchronize()
    return Timing(tuple(pair.ms for pair in pairs))


def on_card(session: Session, images: np.ndarray, repeat: int, warmup: int) -> OnCard:
    """Time the layers, the convolutions alone and the whole pass on resident images.

    It uses as many of the images as fit in device memory.
    """
    count = len(images)
    while True:
        try:
            buffers, ops = _resident(session, count)
            break
        except DeviceMemoryError:
            if count == 1:
                raise UserError("not even one image fits in the device's free memory: free some") from None
        count //= 2
    stream = buffers.stream
    part = images[:count] if is_pinned(images) else pinned_copy(images[:count])
    target, source = buffers.named[IMAGES].data.ptr, part.ctypes.data
    copy = partial(runtime.memcpyAsync, target, source, part.nbytes, runtime.memcpyHostToDevice, stream.ptr)
    raw_copy = timed(copy, stream, repeat, warmup + 1)

    def whole() -> None:
        for launch in buffers.launches:
            launch(stream.ptr, count)

    whole_timing = timed(whole, stream, repeat, warmup)

    def after(index: int, launch: Launch, name: str, flops: int, nbytes: int) -> LayerTime:
        # Run the layers before it first, so that its input buffer holds real data whatever was timed last.
        for before in buffers.launches[:index]:
            before(stream.ptr, count)
        timing = timed(lambda: launch(stream.ptr, count), stream, repeat, warmup)
        return LayerTime(name, launch.kernel.variant.name, count, timing, flops * count, nbytes)

    nodes = enumerate(zip(session.plan.nodes, buffers.launches, strict=True))
    layers = tuple(
        after(index, launch, node.name, node.flops, bytes_moved(node.problem, count)) for index, (node, launch) in nodes
    )
    op_times = tuple(
        after(index, launch, node.head.name, launch.kernel.problem.flops, bytes_moved(launch.kernel.problem, count))
        for index, node, launch, _ in ops
    )
    device_bytes = buffers.nbytes + sum(y.nbytes for *_, y in ops)
    return OnCard(count, whole_timing, layers, op_times, device_bytes, raw_copy)


def _resident(session: Session, count: int) -> tuple[StreamBuffers, list[tuple[int, Node, Launch, cupy.ndarray]]]:
    """Buffers for ``count`` images, and each convolution's place in the plan, node, launch alone and output."""
    plan = session.plan
    buffers = StreamBuffers(plan, session.kernels, session.weights, count)
    ops = []
    for index, node in enumerate(plan.nodes):
        if isinstance(node.problem, ConvProblem):
            kernel = Kernel(node.variant, alone(node.problem), plan.arch, node.settings_alone)
            weights = [None if array is None else uploaded(array) for array in kernel.pack(node.parameters)]
            y = device_array(kernel.arguments()[-1].per_image * count, node.problem.output_dtype)
            ops.append((index, node, kernel.bind([buffers.named[node.reads], *weights, y], count), y))
    return buffers, ops


def end_to_end(session: Session, images: np.ndarray, outputs: Outputs, repeat: int, warmup: int) -> Timing:
    """Time runs by the host clock, from the call to readable labels. The last run's labels stay in ``outputs``."""
    for _ in range(warmup):
        session.run(images, outputs)
    for _ in range(2):  # the second call with the same arrays captures a graph; timed runs must not include that
        if not session.replays(images, outputs):
            session.run(images, outputs)
    outputs.labels.fill(255)  # the accuracy check must see the labels of the timed runs
    return host_timed(partial(session.run, images, outputs), repeat)


def trace(session: Session, images: np.ndarray, outputs: Outputs) -> Timeline:
    """Record one run with an event at each boundary between copy in, kernels and copy out of every chunk.

    The host's share is 0 if runs without events replay a graph, because the host does not enqueue a graph's work.
    """
    chunks = len(list(pieces(len(images), session.chunk)))
    events = iter([cupy.cuda.Event() for _ in range(4 * chunks)])
    marks: list[cupy.cuda.Event] = []

    def mark(buffers: StreamBuffers) -> None:
        event = next(events)
        event.record(buffers.stream)
        marks.append(event)

    start = perf_counter()
    session.submit(images, outputs, mark)
    enqueued = perf_counter()
    session.wait()
    done = perf_counter()
    at = [cupy.cuda.get_elapsed_time(marks[0], event) for event in marks]
    phases = [[(at[i + phase], at[i + phase + 1]) for i in range(0, len(at), 4)] for phase in range(3)]
    share = 0.0 if session.replays(images, outputs) else (enqueued - start) / (done - start)
    return Timeline(phases[0], phases[1], phases[2], enqueue_share=share)


def typical_usage(session: Session, images: np.ndarray, outputs: Outputs) -> Usage:
    """Trace several runs; return the one with the median overlap."""
    traced = sorted((usage(trace(session, images, outputs)) for _ in range(TRACES)), key=lambda use: use.overlap)
    return traced[TRACES // 2]
