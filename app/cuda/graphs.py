"""Make CUDA graphs: capture a repeated batch, or build a graph of kernels node by node.

A thread that waits for the whole device breaks a stream capture; other threads cannot break a graph built of nodes.
CuPy can only capture graphs, so ``KernelGraph`` calls the driver, with ctypes structures that follow its documentation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import RLock
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda import launch_attributes
from app.cuda.launch_attributes import CLUSTER_DIMENSION
from app.cuda.memory import is_pinned


class BatchGraph:
    """The CUDA graph of a batch, captured when a second call has the same arrays (images, then outputs)."""

    def __init__(self) -> None:
        self._arrays: tuple[np.ndarray, ...] = ()  # kept alive, so that no other arrays get their addresses
        self._key: tuple[Any, ...] = ()
        self._graph: Any = None
        self._tried = False
        self._stream: cupy.cuda.Stream | None = None  # created for the first graph

    def has_graph_for(self, arrays: Sequence[np.ndarray]) -> bool:
        """Return whether a graph of exactly these arrays has been captured."""
        if self._graph is None:
            return False
        same = len(arrays) == len(self._arrays) and all(a is b for a, b in zip(arrays, self._arrays, strict=True))
        return same or self._key == _address_key(arrays)  # reading addresses takes microseconds

    def launch(self) -> None:
        """Launch the graph and wait until its results are complete."""
        assert self._stream is not None
        self._graph.launch(self._stream)
        self._stream.synchronize()

    def capture_if_repeated(
        self, arrays: Sequence[np.ndarray], make_enqueue: Callable[[], Callable[[cupy.cuda.Stream], None]]
    ) -> None:
        """Capture the batch if its arrays equal those of the previous call; remember the arrays.

        make_enqueue: called once before the capture, during which nothing can be allocated; returns the function that
        enqueues the batch. Copies from or to pageable memory cannot be captured. If the driver cannot build the graph
        (device memory may be full), later calls enqueue the batch without one.
        """
        key = _address_key(arrays)
        if key != self._key:
            self._key, self._arrays, self._graph, self._tried = key, tuple(arrays), None, False
        elif not self._tried and all(is_pinned(array) for array in arrays):
            self._tried = True
            with suppress(runtime.CUDARuntimeError):
                self._graph = self._capture_graph(make_enqueue())

    def _capture_graph(self, enqueue: Callable[[cupy.cuda.Stream], None]) -> Any:
        origin = self._stream = self._stream or cupy.cuda.Stream(non_blocking=True)
        with DEVICE_WIDE:
            # Relaxed: other threads may allocate meanwhile, and this one's garbage collector may free.
            origin.begin_capture(runtime.streamCaptureModeRelaxed)
            try:
                enqueue(origin)
            except BaseException:
                with suppress(runtime.CUDARuntimeError):
                    origin.end_capture()  # or the streams would stay in capture mode
                raise
            graph = origin.end_capture()
        graph.upload(origin)
        return graph


def _address_key(arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
    return tuple((array.ctypes.data, array.dtype, array.shape, array.strides) for array in arrays)


# A lock for capturing a graph or waiting for the whole device: such a wait in another thread breaks a capture.
DEVICE_WIDE = RLock()


Size = tuple[int, int, int]


class _KernelNodeParams(ctypes.Structure):
    """The driver's CUDA_KERNEL_NODE_PARAMS_v2: a kernel with its grid, block and arguments."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("values", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


_EARLY = (ctypes.c_ubyte * 8)(1, 0, 1)  # CUgraphEdgeData: from the port "programmatic", of the type "programmatic"


class KernelGraph:
    """A CUDA graph of kernels that run one after another, in the order in which ``add_kernel`` added them."""

    def __init__(self) -> None:
        graph = ctypes.c_void_p()
        launch_attributes.call_driver("cuGraphCreate", ctypes.byref(graph), ctypes.c_uint(0))
        self._graph, self._executable = graph, 0
        self._last: ctypes.c_void_p | None = None

    def add_kernel(
        self, function: int, values: int, grid: Size, block: Size, shared_bytes: int, *, dependent: bool, cluster: int
    ) -> None:
        """Add a kernel after the last one, and copy its arguments. function: the driver's handle of the kernel.

        values: address of an array with the addresses of the arguments. grid, block: blocks and threads along x, y, z.
        dependent: whether it may start before the last one has ended. cluster: blocks per cluster.
        """
        node, ahead = ctypes.c_void_p(), self._last
        parameters = _KernelNodeParams(function, grid, block, shared_bytes, values)
        waits = ahead is not None and not dependent
        link = ctypes.byref(ahead) if ahead is not None else None
        launch_attributes.call_driver(
            "cuGraphAddKernelNode_v2",
            *(ctypes.byref(node), self._graph, link if waits else None),
            *(ctypes.c_size_t(waits), ctypes.byref(parameters)),
        )
        if cluster > 1:
            value = (ctypes.c_uint * 16)(cluster, 1, 1)
            launch_attributes.call_driver(
                "cuGraphKernelNodeSetAttribute",
                node,
                ctypes.c_int(CLUSTER_DIMENSION),
                ctypes.byref(value),
            )
        if ahead is not None and not waits:
            edge = (link, ctypes.byref(node), ctypes.byref(_EARLY))
            launch_attributes.call_driver("cuGraphAddDependencies_v2", self._graph, *edge, ctypes.c_size_t(1))
        self._last = node

    def launch(self, stream: int) -> None:
        """Enqueue the kernels on a stream, given by its pointer. The first launch instantiates the graph."""
        if not self._executable:
            self._executable = runtime.graphInstantiate(self._graph.value)
        runtime.graphLaunch(self._executable, stream)

    def free(self) -> None:
        """Destroy the graph. It must not be running."""
        if self._executable:
            runtime.graphExecDestroy(self._executable)
        runtime.graphDestroy(self._graph.value)
