"""Launch kernels in thread block clusters, or by programmatic dependent launch, on sm_90 and later.

The blocks of a cluster run at the same time (``cluster.cuh``). A dependent kernel starts before the previous kernel of
the stream has ended, and itself waits for that kernel's results (``dependent_launch.cuh``). CuPy has no call for
either, so this module calls the driver's cuLaunchKernelEx. Its structures follow the CUDA Driver API's documentation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from cupy_backends.cuda.api import driver, runtime

CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
KEPT_SIZES = 64  # sizes of launches whose grids are remembered
DEPENDENT_SINCE = 12_030  # driver version from which CUDA graphs can hold dependent launches


class _Attribute(ctypes.Structure):
    """The driver's CUlaunchAttribute: the number of a launch attribute, and its value in a union of 64 bytes."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int * 3),
        ("rest", ctypes.c_char * 52),
    )


class _Config(ctypes.Structure):
    """The driver's CUlaunchConfig: grid, block, stream and attributes of a launch."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def supports_dependent_launch() -> bool:
    """Return whether the driver supports dependent launches, also in CUDA graphs."""
    version: int = runtime.driverGetVersion()
    return version >= DEPENDENT_SINCE


def make_attributed_launcher(
    function: int,
    values: ctypes.Array[ctypes.c_void_p],
    block: tuple[int, int],
    grid: Callable[[Any], tuple[int, int, int]],
    cluster: Callable[[Any], int] | None,
    launch_plain: Callable[[int, Any], None],
    *,
    dependent: bool,
) -> Callable[[int, Any], None]:
    """Return a function of (stream pointer, size) that launches a kernel. size: mostly the number of images.

    function: the driver's handle. values: addresses of the arguments, read at each launch. block: threads, and bytes of
    dynamic shared memory. grid: size → blocks. cluster: size → blocks per cluster, neighbours along x. launch_plain:
    called instead where no attribute is needed, as CuPy's launch takes less time. dependent: whether the kernel may
    start before the previous one ends.
    """
    kernel = ctypes.c_void_p(function)
    early = _Attribute(number=PROGRAMMATIC, value=(1, 0, 0))

    @lru_cache(KEPT_SIZES)
    def launch_config(size: Any) -> tuple[_Config, Any] | None:
        blocks = cluster(size) if cluster else 1
        together = _Attribute(number=CLUSTER_DIMENSION, value=(blocks, 1, 1))  # omitted for 1: it would slow the launch
        attributes = [early] * dependent + [together] * (blocks > 1)
        if not attributes or not grid(size)[0]:
            return None
        array = (_Attribute * len(attributes))(*attributes)
        config = _Config(grid(size), (block[0], 1, 1), block[1], attributes=array, attribute_count=len(attributes))
        return config, ctypes.byref(config)

    def launch(stream: int, size: Any) -> None:
        found = launch_config(size)
        if found is None:
            launch_plain(stream, size)
        else:
            found[0].stream = stream
            launch_kernel_ex(found[1], kernel, values)  # a global: ``profile`` replaces it

    return launch


def launch_kernel_ex(config: Any, function: ctypes.c_void_p, values: ctypes.Array[ctypes.c_void_p]) -> None:
    """Call the driver's cuLaunchKernelEx. config: reference to a ``_Config``. Raises CUDADriverError if it fails."""
    driver.check_status(_load_launch_kernel_ex()(config, function, values, None))


@cache
def _load_launch_kernel_ex() -> Callable[..., int]:
    return _load_driver_library().cuLaunchKernelEx


def call_driver(name: str, *arguments: Any) -> None:
    """Call a function of the driver by its name. Raises CUDADriverError if it fails."""
    driver.check_status(getattr(_load_driver_library(), name)(*arguments))


@cache
def _load_driver_library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
