"""Time a run on the GPU: each layer, all kernels together, and end to end. Trace when its copies and kernels ran.

CUDA events time kernels and copies. The host clock times end to end: from the call to readable labels, with an idle
device at the start. All times are in milliseconds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import cupy
import numpy as np
from cupy.cuda import runtime

from app.base.clock import Timer, time_by_host_clock
from app.base.errors import UserError
from app.base.frozen import Frozen
from app.cuda.events import EventSequence, time_by_events
from app.cuda.memory import DeviceMemoryError, device_array, is_pinned, pinned_copy, upload
from app.engine.buffers import StreamBuffers, chunk_slices
from app.engine.gpu import GpuEngine
from app.engine.interface import Outputs
from app.kernels.launch import Kernel, Launch
from app.kernels.plain_problems import bytes_moved
from app.kernels.problems import ConvProblem, without_epilogue
from app.main_job.result import Timing, layer_row
from app.main_job.statistics import Timeline, pipeline_usage
from app.planning.matching import Node
from app.planning.plan import IMAGES

if TYPE_CHECKING:
    from app.kernels.by_count import AnyLaunch
    from app.records.report import Layer, Pipeline

TRACES = 9


class CardTimes(Frozen):
    """Times with ``images`` images resident on the card, as one chunk, without transfers. whole: of all kernels.

    op_times: of convolutions alone with bias. raw_copy: of copying the images once from page-locked memory.
    """

    images: int
    whole: Timing
    layers: tuple[Layer, ...]
    op_times: tuple[Layer, ...]
    device_bytes: int
    raw_copy: Timing


def time_on_card(engine: GpuEngine, images: np.ndarray, repeat: int, warmup: int) -> CardTimes:
    """Time the layers, single convolutions and the whole network on as many of the images as fit in device memory.

    repeat, warmup: number of timed runs, and of untimed ones before. Raises UserError if not even one image fits.
    """
    count = len(images)
    while True:
        try:
            buffers, ops = _allocate_resident_buffers(engine, count)
            break
        except DeviceMemoryError:
            if count == 1:
                raise UserError("not even one image fits in the device's free memory: free some") from None
        count //= 2
    stream = buffers.stream
    part = images[:count] if is_pinned(images) else pinned_copy(images[:count])
    target, source = buffers.named[IMAGES].data.ptr, part.ctypes.data
    copy = partial(runtime.memcpyAsync, target, source, part.nbytes, runtime.memcpyHostToDevice, stream.ptr)
    raw_copy = Timing(time_by_events(copy, stream, repeat, warmup + 1))

    def run_whole_pass() -> None:
        for launch in buffers.launches:
            launch(stream.ptr, count)

    whole_timing = Timing(time_by_events(run_whole_pass, stream, repeat, warmup))

    def time_layer(index: int, launch: AnyLaunch, name: str, flops: int, nbytes: int) -> Layer:
        # Run the layers before it first, so that its input buffer holds real data whatever was timed last.
        for before in buffers.launches[:index]:
            before(stream.ptr, count)
        timing = Timing(time_by_events(lambda: launch(stream.ptr, count), stream, repeat, warmup))
        return layer_row(name, launch.launch_for(count).kernel.variant.name, count, timing, flops * count, nbytes)

    nodes = enumerate(zip(engine.plan.nodes, buffers.launches, strict=True))
    layers = tuple(
        time_layer(index, launch, node.name, node.flops, bytes_moved(node.problem.arguments(), count))
        for index, (node, launch) in nodes
    )
    op_times = tuple(
        time_layer(
            index,
            launch,
            node.head.name,
            launch.kernel.problem.flops,
            bytes_moved(launch.kernel.problem.arguments(), count),
        )
        for index, node, launch, _ in ops
    )
    device_bytes = buffers.nbytes + sum(y.nbytes for *_, y in ops)
    return CardTimes(count, whole_timing, layers, op_times, device_bytes, raw_copy)


def _allocate_resident_buffers(
    engine: GpuEngine, count: int
) -> tuple[StreamBuffers, list[tuple[int, Node, Launch, cupy.ndarray]]]:
    """Return device buffers for ``count`` images, and (index in the plan, node, launch, output) of each convolution."""
    plan = engine.plan
    buffers = StreamBuffers(engine.loaded, count)
    ops = []
    for index, node in enumerate(plan.nodes):
        if isinstance(node.problem, ConvProblem):
            kernel = Kernel(node.variant, without_epilogue(node.problem), plan.arch, node.settings_alone)
            weights = [None if array is None else upload(array) for array in kernel.pack(node.parameters)]
            y = device_array(kernel.arguments()[-1].per_image * count, node.problem.output_dtype)
            ops.append((index, node, kernel.bind([buffers.named[node.reads], *weights, y], count), y))
    return buffers, ops


def time_end_to_end(engine: GpuEngine, images: np.ndarray, outputs: Outputs, repeat: int, warmup: int) -> Timing:
    """Time runs by the host clock, from the call to readable labels. outputs: keeps the labels of the last run."""
    for _ in range(warmup):
        engine.run(images, outputs)
    for _ in range(2):  # the second call with the same arrays captures a graph; timed runs must not include that
        if not engine.replays_graph_for(images, outputs):
            engine.run(images, outputs)
    outputs.labels.fill(255)  # the accuracy check must see the labels of the timed runs
    return Timing(time_by_host_clock(partial(engine.run, images, outputs), repeat))


def trace_run(engine: GpuEngine, images: np.ndarray, outputs: Outputs) -> Timeline:
    """Run once; return the intervals of each chunk's copy in, kernels and copy out, between which events are recorded.

    ``enqueue_share`` is 0 if untraced runs replay a CUDA graph, because the host does not enqueue a graph's work.
    """
    chunks = len(list(chunk_slices(len(images), engine.chunk)))
    marks = EventSequence(ready=4 * chunks)

    def record_event(buffers: StreamBuffers) -> None:
        marks.record(buffers.stream.ptr)

    timer = Timer()
    engine.submit(images, outputs, record_event)
    enqueued = timer.seconds
    engine.wait()
    done = timer.seconds
    at = marks.ms
    phases = [[(at[i + phase], at[i + phase + 1]) for i in range(0, len(at), 4)] for phase in range(3)]
    share = 0.0 if engine.replays_graph_for(images, outputs) else enqueued / done
    return Timeline(phases[0], phases[1], phases[2], enqueue_share=share)


def median_pipeline_usage(engine: GpuEngine, images: np.ndarray, outputs: Outputs) -> Pipeline:
    """Trace several runs; return the record of the one with the median overlap of copies and kernels."""
    traced = sorted(
        (pipeline_usage(trace_run(engine, images, outputs)) for _ in range(TRACES)), key=lambda use: use["overlap"]
    )
    return traced[TRACES // 2]
