"""Programmatic dependent launch (sm_90 and later): a kernel starts before the one ahead of it in its stream has ended.

It waits for the other's results itself (``dependent_launch.cuh``). Until then it overlaps with the other: it starts,
and loads its own parameters. CuPy has no call for it, so this is the driver's, cuLaunchKernelEx; structures as in the
CUDA Driver API's documentation. Drivers before 12.3 have no such edges in a CUDA graph: they launch as usual.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from cupy_backends.cuda.api import driver, runtime

PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
SINCE = 12_030  # the driver's version


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: its number, and 64 bytes for any kind of value."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def is_supported() -> bool:
    """Return whether the driver can, in a stream and in a CUDA graph."""
    version: int = runtime.driverGetVersion()
    return version >= SINCE


def dependent_launcher(
    function: int, values: ctypes.Array[ctypes.c_void_p], threads: int, shared_bytes: int
) -> Callable[[int, tuple[int, int, int]], None]:
    """Return a function of a stream pointer and a grid that enqueues a launch of the kernel ``function``.

    values: addresses of the arguments, read at each launch.
    """
    attribute = _Attribute(number=PROGRAMMATIC, value=1)
    config = _Config(
        block=(threads, 1, 1), shared_bytes=shared_bytes, attributes=ctypes.pointer(attribute), attribute_count=1
    )
    arguments = ctypes.byref(config), ctypes.c_void_p(function), values

    def launch(stream: int, grid: tuple[int, int, int]) -> None:
        config.grid[:] = grid
        config.stream = stream
        launch_kernel_ex(*arguments)  # looked up at each launch: ``profile`` replaces it

    return launch


def launch_kernel_ex(config: Any, function: ctypes.c_void_p, values: ctypes.Array[ctypes.c_void_p]) -> None:
    """Call the driver's cuLaunchKernelEx. Raises CuPy's CUDADriverError as any launch does."""
    driver.check_status(_driver_call()(config, function, values, None))


@cache
def _driver_call() -> Callable[..., int]:
    return ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
