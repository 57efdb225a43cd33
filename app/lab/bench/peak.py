"""Measure the card's peaks: arithmetic rates with operands in registers, and bandwidth of copies within the card."""

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cupy.cuda import runtime

from app.cuda.compiler import architecture_number, compile_kernel
from app.cuda.memory import DeviceMemoryError, device_array
from app.kernels.function import KernelFunction
from app.kernels.launch import load_cubin
from app.lab.timer import Clock
from app.records.parts import Peaks

SOURCE = Path(__file__).with_name("peak.cu")
CHAINS, UNROLL, THREADS = 8, 16, 256  # as in peak.cu
BLOCKS_EACH = 8  # blocks per multiprocessor
TARGET_MS = 5.0
COPY_BYTES = 1 << 30
NOISE = 0.01


class Loop(NamedTuple):
    """A loop of peak.cu for one kind of instruction. constant: compile-time constant that selects the loop.

    operations: FLOPs per thread and round. serves: function from an architecture's number, such as 90, to whether it
    has the instruction.
    """

    constant: str
    operations: int
    serves: Callable[[int], bool] = lambda number: number >= 75


# Peak (results.peak_name) → the loop that measures it.
LOOPS = {
    "float32": Loop("FMA", 2 * CHAINS * UNROLL),
    "tfloat32": Loop("TF32", 2 * 16 * 8 * 8 // 32 * CHAINS * UNROLL, lambda number: number >= 80),
    "float16": Loop("F16", 2 * 16 * 8 * 16 // 32 * CHAINS * UNROLL, lambda number: number >= 80),
    "float16 hfma2": Loop("HFMA2", 4 * CHAINS * UNROLL),
    "float16 wgmma": Loop("WGMMA", 2 * 64 * 256 * 16 // 128 * UNROLL, lambda number: number == 90),
}


def measure_peaks(arch: str) -> Peaks:
    """Return the peak TFLOP/s of each instruction family of the architecture, and the GB/s of reads plus writes."""
    clock, number = Clock(arch), architecture_number(arch)
    rates = {name: _measure_loop_tflops(clock, arch, loop) for name, loop in LOOPS.items() if loop.serves(number)}
    return {"tflops": rates, "gbytes_per_s": _measure_copy_bandwidth(clock)}


def _measure_loop_tflops(clock: Clock, arch: str, loop: Loop) -> float:
    """Return the TFLOP/s of the whole card while it runs the loop."""
    function = KernelFunction(load_cubin(compile_kernel(SOURCE, {loop.constant: 1}, arch)), "peak", threads=THREADS)
    blocks = BLOCKS_EACH * runtime.getDeviceProperties(runtime.getDevice())["multiProcessorCount"]
    out = device_array(THREADS, "float32")
    rounds = ctypes.c_int(64)
    values = (ctypes.c_void_p(out.data.ptr), ctypes.c_float(0.5), ctypes.c_float(1.0), rounds)
    launch = partial(function.make_launcher(values, lambda count: (count, 1, 1)), clock.stream.ptr, blocks)
    short = clock.time_enqueued_work(launch, NOISE, "warm").median
    rounds.value = max(int(64 * TARGET_MS / short), 64)
    ms = clock.time_enqueued_work(launch, NOISE, "warm").median
    return blocks * THREADS * rounds.value * loop.operations / ms / 1e9


def _measure_copy_bandwidth(clock: Clock) -> float:
    """Return the bandwidth in GB/s of a device-memory copy between the largest buffers that fit."""
    size = COPY_BYTES
    while True:
        try:
            source, target = device_array(size, "uint8"), device_array(size, "uint8")
            break
        except DeviceMemoryError:
            if size < 1 << 20:
                raise
        size //= 2
    addresses, direction = (target.data.ptr, source.data.ptr), runtime.memcpyDeviceToDevice
    copy = partial(runtime.memcpyAsync, *addresses, size, direction, clock.stream.ptr)
    return 2 * size / clock.time_enqueued_work(copy, NOISE, "warm").median / 1e6
