"""Record when each kernel and copy of a run began and ended on its stream, with a pair of events around each.

During the recording, wrappers replace the functions that the engine calls; the engine itself is unchanged.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import cycle
from typing import Any

import cupy
from cupy.cuda import runtime
from cupy_backends.cuda.api import driver

from app.base.clock import now
from app.base.frozen import Frozen
from app.cuda import launch_attributes
from app.cuda.events import EventSequence
from app.engine.gpu import GpuEngine
from app.kernels.by_count import LaunchByCount
from app.kernels.launch import Launch
from app.kernels.variant import Action, ConstantCopy, KernelLaunch, Variant
from app.lab.profile.api_calls import Function, cublas_if_loaded, wrap_attribute
from app.main_job.statistics import trim_overlapping_intervals
from app.planning.matching import Node

COPIES = {
    runtime.memcpyHostToDevice: ("h2d", "images to the card (H2D)"),
    runtime.memcpyDeviceToHost: ("d2h", "results to the host (D2H)"),
}


class Span(Frozen):
    """The execution of a kernel or copy. kind: kernel, h2d, d2h or d2d. start, stop: ms since the recording began.

    layer: name of the layer, or of fused layers; empty for copies of the batch. name: of the kernel or copy. stream:
    index. entry: name of the kernel's function. nbytes: bytes copied.
    """

    kind: str
    layer: str
    name: str
    stream: int
    start: float = 0.0
    stop: float = 0.0
    entry: str = ""
    nbytes: int = 0

    @property
    def ms(self) -> float:
        """Return the duration in ms."""
        return self.stop - self.start


def action_kind_name_entry(action: Action, variant: Variant) -> tuple[str, str, str]:
    """Return kind, name and entry (see ``Span``) of an action of a launch: a kernel, copy or cuBLAS call."""
    match action:
        case KernelLaunch():
            entry = action.entry or variant.entry
            part = entry.removeprefix(variant.entry).strip("_").replace("_", " ")
            return "kernel", f"{variant.name}: {part}" if part else variant.name, entry
        case ConstantCopy():
            return "d2d", f"{variant.name}: filters to constant memory (D2D)", ""
        case _:
            return "kernel", f"{variant.name}: cuBLAS sgemm", ""


@contextmanager
def nvtx_range(text: str) -> Iterator[None]:
    """Mark the block as a range for external profilers; do nothing if CuPy was built without NVTX."""
    nvtx = getattr(cupy.cuda, "nvtx", None)
    if nvtx is None or not nvtx.available:
        yield
        return
    nvtx.RangePush(text)
    try:
        yield
    finally:
        nvtx.RangePop()


class Recorder:
    """Records runs of one engine, one after another. The first run creates the events; later runs reuse them.

    Because of the events, no kernel starts before the previous one has ended (``dependent_launch.cuh``). zero: the
    host's clock in s at time 0 of the spans, accurate to a few microseconds.
    """

    def __init__(self, engine: GpuEngine) -> None:
        self.zero = 0.0
        self._streams = {buffers.stream.ptr: index for index, buffers in enumerate(engine.stream_buffers)}
        self._nodes: dict[int, Node] = {
            id(one): node
            for buffers in engine.stream_buffers
            for launch, node in zip(buffers.launches, engine.plan.nodes, strict=True)
            for one in (launch.launches if isinstance(launch, LaunchByCount) else (launch,))
        }
        self._marks = EventSequence()  # one at the beginning, and two for each span
        self._recorded: list[Span] = []
        # The layer being enqueued, its stream, its actions, one per wrapped call, and its kernel.
        self._node: Node | None = None
        self._stream = 0
        self._actions: Iterator[Action] = iter(())
        self._variant: Variant | None = None

    def reset_clock(self) -> None:
        """Discard the last run and set time 0 of the next run's spans; the device must be idle."""
        self._recorded = []
        self._marks.restart()
        self._marks.record(next(iter(self._streams)))
        self._marks.synchronize()
        self.zero = now()

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record every kernel and copy that is enqueued while the block runs."""
        with ExitStack() as undo:
            undo.enter_context(wrap_attribute(Launch, "__call__", self._wrap_layer_launch))
            undo.enter_context(wrap_attribute(driver, "launchKernel", self._wrap_kernel_launch))
            undo.enter_context(wrap_attribute(launch_attributes, "launch_kernel_ex", self._wrap_kernel_launch))
            undo.enter_context(wrap_attribute(runtime, "memcpyAsync", self._wrap_copy))
            if cublas_if_loaded() is not None:
                undo.enter_context(wrap_attribute(cublas_if_loaded(), "sgemm", self._wrap_kernel_launch))
            undo.enter_context(nvtx_range("batch"))
            yield

    def spans(self) -> list[Span]:
        """Return the recorded spans in the order of enqueueing; the engine must have waited for the end of the run."""
        at = self._marks.ms[1:]
        timed = (replace(s, start=at[2 * i], stop=at[2 * i + 1]) for i, s in enumerate(self._recorded))
        return remove_queueing_time(list(timed))

    def _wrap_layer_launch(self, original: Function) -> Function:
        def launch_layer(launch: Launch, stream: int, images: int) -> None:
            self._node, self._stream = self._nodes[id(launch)], stream
            actions = launch.kernel.config.actions
            taken = [one for one in actions if not isinstance(one, KernelLaunch) or one.grid(images)[0]]
            self._variant, self._actions = launch.kernel.variant, cycle(taken)
            try:
                with nvtx_range(self._node.name):
                    original(launch, stream, images)
            finally:
                self._node = None

        return launch_layer

    def _wrap_kernel_launch(self, original: Function) -> Function:
        return lambda *arguments: self._call_between_events(self._next_action_span(), self._stream, original, arguments)

    def _wrap_copy(self, original: Function) -> Function:
        def call_copy_timed(*arguments: Any) -> None:
            _, _, nbytes, direction, stream = arguments
            if self._node is None:
                kind, name = COPIES[direction]
                span = Span(kind, "", name, self._streams[stream])
            else:
                span = self._next_action_span()
            self._call_between_events(replace(span, nbytes=nbytes), stream, original, arguments)

        return call_copy_timed

    def _next_action_span(self) -> Span:
        assert self._node is not None and self._variant is not None, "kernels are launched by layers"
        kind, name, entry = action_kind_name_entry(next(self._actions), self._variant)
        return Span(kind, self._node.name, name, self._streams[self._stream], entry=entry)

    def _call_between_events(
        self, span: Span, stream: int, original: Callable[..., None], arguments: Iterable[Any]
    ) -> None:
        with nvtx_range(span.name):
            self._marks.record(stream)
            original(*arguments)
            self._marks.record(stream)
        self._recorded.append(span)


def remove_queueing_time(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of copies without the time in which they waited for a copy engine; other spans unchanged."""
    result = list(spans)
    for kind in ("h2d", "d2h"):
        places = sorted((i for i, span in enumerate(spans) if span.kind == kind), key=lambda i: spans[i].stop)
        trimmed = trim_overlapping_intervals((spans[i].start, spans[i].stop) for i in places)
        for place, (start, stop) in zip(places, trimmed, strict=True):
            result[place] = replace(spans[place], start=start, stop=stop)
    return result
