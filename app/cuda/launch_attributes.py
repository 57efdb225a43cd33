"""Launches with attributes: clusters of blocks, and programmatic dependent launch; sm_90 and later.

A cluster's blocks run side by side (``cluster.cuh``). A dependent kernel starts before the one ahead of it in its
stream has ended, and waits for the other's results itself (``dependent_launch.cuh``): until then the two overlap. CuPy
has no call for either, so this is the driver's, cuLaunchKernelEx; structures as in the CUDA Driver API's documentation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from cupy_backends.cuda.api import driver, runtime

CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
DEPENDENT_SINCE = 12_030  # the driver's version: before, a CUDA graph cannot hold dependent launches


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: its number, and 64 bytes for any kind of value."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int * 3),
        ("rest", ctypes.c_char * 52),
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


def serves_dependent() -> bool:
    """Return whether the driver can launch dependent kernels in a stream and in a CUDA graph."""
    version: int = runtime.driverGetVersion()
    return version >= DEPENDENT_SINCE


def attributed_launcher(
    function: int, values: ctypes.Array[ctypes.c_void_p], threads: int, shared_bytes: int, *, dependent: bool
) -> Callable[[int, tuple[int, int, int], int], None]:
    """Return a function of a stream pointer, a grid and a cluster's blocks that enqueues the kernel ``function``.

    values: addresses of the arguments, read at each launch. The cluster's blocks are neighbours along x.
    """
    early = _Attribute(number=PROGRAMMATIC, value=(1, 0, 0))
    together = _Attribute(number=CLUSTER_DIMENSION, value=(1, 1, 1))
    attributes = (_Attribute * 2)(early, together) if dependent else (_Attribute * 1)(together)
    config = _Config(block=(threads, 1, 1), shared_bytes=shared_bytes, attributes=attributes)
    arguments = ctypes.byref(config), ctypes.c_void_p(function), values
    size = attributes[-1].value  # the same memory

    def launch(stream: int, grid: tuple[int, int, int], cluster: int) -> None:
        config.grid[:] = grid
        config.stream = stream
        size[0] = cluster
        config.attribute_count = dependent + (cluster > 1)  # even a cluster of one block takes longer to launch
        launch_kernel_ex(*arguments)  # looked up at each launch: ``profile`` replaces it

    return launch


def where_needed(
    start: Callable[[int, tuple[int, int, int], int], None],
    usual: Callable[[int, Any], None],
    grid: Callable[[Any], tuple[int, int, int]],
    cluster: Callable[[Any], int] | None,
    *,
    always: bool,
) -> Callable[[int, Any], None]:
    """Return a function of a stream pointer and a size: ``start`` where a cluster has several blocks, else ``usual``.

    always: ``start`` for every size. CuPy's ``usual`` launch takes less of the host's time.
    """

    def launch(stream: int, size: Any) -> None:
        blocks = cluster(size) if cluster else 1
        if always or blocks > 1:
            start(stream, grid(size), blocks)
        else:
            usual(stream, size)

    return launch


def launch_kernel_ex(config: Any, function: ctypes.c_void_p, values: ctypes.Array[ctypes.c_void_p]) -> None:
    """Call the driver's cuLaunchKernelEx. Raises CuPy's CUDADriverError as any launch does."""
    driver.check_status(_driver_call()(config, function, values, None))


@cache
def _driver_call() -> Callable[..., int]:
    return ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
