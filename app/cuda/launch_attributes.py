"""Launch kernels in clusters of blocks, or by programmatic dependent launch; sm_90 and later.

A cluster's blocks run side by side (``cluster.cuh``). A dependent kernel starts before the kernel ahead of it in the
stream has ended, and itself waits for that kernel's results (``dependent_launch.cuh``). CuPy has no call for either, so
this calls the driver's cuLaunchKernelEx; structures as in the CUDA Driver API's documentation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from cupy_backends.cuda.api import driver, runtime

CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
DEPENDENT_SINCE = 12_030  # driver version from which CUDA graphs can hold dependent launches


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a number, and a union of 64 bytes."""

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
    """Return whether the driver supports dependent launches, also in CUDA graphs."""
    version: int = runtime.driverGetVersion()
    return version >= DEPENDENT_SINCE


def attributed_launcher(
    function: int, values: ctypes.Array[ctypes.c_void_p], threads: int, shared_bytes: int, *, dependent: bool
) -> Callable[[int, tuple[int, int, int], int], None]:
    """Return a function that launches ``function``, given a stream pointer, a grid and blocks per cluster.

    values: addresses of the arguments, read at each launch. A cluster's blocks are neighbours along x.
    """
    early = _Attribute(number=PROGRAMMATIC, value=(1, 0, 0))
    together = _Attribute(number=CLUSTER_DIMENSION, value=(1, 1, 1))
    attributes = (_Attribute * 2)(early, together) if dependent else (_Attribute * 1)(together)
    config = _Config(block=(threads, 1, 1), shared_bytes=shared_bytes, attributes=attributes)
    arguments = ctypes.byref(config), ctypes.c_void_p(function), values
    size = attributes[-1].value  # views the value's memory

    def launch(stream: int, grid: tuple[int, int, int], cluster: int) -> None:
        config.grid[:] = grid
        config.stream = stream
        size[0] = cluster
        config.attribute_count = dependent + (cluster > 1)  # omitted for 1: it would slow the launch
        launch_kernel_ex(*arguments)  # a global: ``profile`` replaces it

    return launch


def choose_launcher(
    start: Callable[[int, tuple[int, int, int], int], None],
    usual: Callable[[int, Any], None],
    grid: Callable[[Any], tuple[int, int, int]],
    cluster: Callable[[Any], int] | None,
    *,
    always: bool,
) -> Callable[[int, Any], None]:
    """Return a launcher that calls ``start`` for clusters of several blocks, else ``usual``, given a stream and a size.

    always: call ``start`` for every size. CuPy's ``usual`` launch takes less host time.
    """

    def launch(stream: int, size: Any) -> None:
        blocks = cluster(size) if cluster else 1
        if always or blocks > 1:
            start(stream, grid(size), blocks)
        else:
            usual(stream, size)

    return launch


def launch_kernel_ex(config: Any, function: ctypes.c_void_p, values: ctypes.Array[ctypes.c_void_p]) -> None:
    """Call the driver's cuLaunchKernelEx. Raises CUDADriverError, as CuPy's launches do."""
    driver.check_status(_driver_call()(config, function, values, None))


@cache
def _driver_call() -> Callable[..., int]:
    return _driver().cuLaunchKernelEx


def driver_call(name: str, *arguments: Any) -> None:
    """Call a function of the driver. Raises CUDADriverError, as CuPy's calls do."""
    driver.check_status(getattr(_driver(), name)(*arguments))


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
