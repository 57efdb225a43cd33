"""Time work on a CUDA stream with events, repeated until the median is steady."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.compiler import compile_kernel
from app.cuda.events import EventPair
from app.cuda.memory import device_array
from app.kernels.function import KernelFunction
from app.kernels.launch import load_cubin
from app.main_job.result import Timing
from app.main_job.statistics import has_enough_samples, launches_per_sample

WAIT = Path(__file__).with_name("wait.cu")
ENQUEUE_US = 20  # host time to enqueue a kernel or copy, a generous estimate
LONGEST_WAIT_US = 2000
COUNTED_NS = 100_000  # time over which clock cycles are counted


class Clock:
    """Times work on its stream with CUDA events. A delay kernel runs first, so that the host can enqueue all the work.

    arch: such as ``sm_90a``.
    """

    def __init__(self, arch: str) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)
        properties = runtime.getDeviceProperties(runtime.getDevice())
        self.l2_bytes = int(properties["l2CacheSize"])
        self._flush = device_array(max(2 * self.l2_bytes, 64 << 20), "uint8")
        self._nanoseconds = ctypes.c_longlong()
        module = load_cubin(compile_kernel(WAIT, {}, arch))
        self._wait = KernelFunction(module, "wait", threads=1).make_launcher([self._nanoseconds], tuple)
        self._count_cycles = KernelFunction(module, "count_cycles", threads=1)

    def time_enqueued_work(self, enqueue: Callable[[], None], noise: float, l2: str, actions: int = 1) -> Timing:
        """Return the times in ms of the work that a call of ``enqueue()`` puts on the stream.

        noise: relative error of the median at which to stop. actions: kernels and copies per call, roughly. l2:
        ``cold`` writes a buffer of twice the L2 cache's size before each run, outside of the events; ``warm`` enqueues
        short work several times between the events.
        """
        first = self.time_sample(enqueue, 1, l2, actions)  # warm-up: loads code, raises clocks
        count = launches_per_sample(min(first, self.time_sample(enqueue, 1, l2, actions)), l2)
        samples: list[float] = []
        while not has_enough_samples(samples, noise):
            samples.append(self.time_sample(enqueue, count, l2, actions))
        return Timing(tuple(samples))

    def time_sample(self, enqueue: Callable[[], None], count: int, l2: str, actions: int) -> float:
        """Return the mean ms of ``count`` calls of ``enqueue``. l2: ``cold`` or ``warm``. actions: kernels per call."""
        if l2 == "cold":
            runtime.memsetAsync(self._flush.data.ptr, 0, self._flush.nbytes, self.stream.ptr)
        self._occupy_stream(actions * count)
        pair = EventPair()

        def enqueue_repeatedly() -> None:
            for _ in range(count):
                enqueue()

        pair.record_around(enqueue_repeatedly, self.stream)
        pair.synchronize()
        return pair.ms / count

    def sm_clock_mhz(self) -> float:
        """Measure for a tenth of a millisecond; return the clock rate of the multiprocessors in MHz."""
        cycles = device_array(1, "int64")
        self._count_cycles(self.stream, (1, 1, 1), np.uint64(COUNTED_NS), cycles)
        self.stream.synchronize()
        return float(cycles.get()[0]) / COUNTED_NS * 1e3

    def _occupy_stream(self, actions: int) -> None:
        """Enqueue a kernel that waits about as long as the host needs to enqueue ``actions`` kernels and copies."""
        self._nanoseconds.value = min(ENQUEUE_US * (actions + 1), LONGEST_WAIT_US) * 1000
        self._wait(self.stream.ptr, (1, 1, 1))
