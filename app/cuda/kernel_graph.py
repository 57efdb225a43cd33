"""Build a CUDA graph of kernels node by node.

No other thread can break this, whereas a thread that waits for the whole device breaks a stream capture. CuPy can only
capture graphs, so this module calls the driver. Its structures follow the CUDA Driver API's documentation.
"""

from __future__ import annotations

import ctypes

from cupy.cuda import runtime

from app.cuda import launch_attributes
from app.cuda.launch_attributes import CLUSTER_DIMENSION

Size = tuple[int, int, int]


class _Node(ctypes.Structure):
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
        self, function: int, values: int, grid: Size, threads: int, shared_bytes: int, *, dependent: bool, cluster: int
    ) -> None:
        """Add a kernel after the last one, and copy its arguments. values: address of an array of their addresses.

        dependent, cluster: as for ``Function``.
        """
        node, ahead = ctypes.c_void_p(), self._last
        parameters = _Node(function, grid, (threads, 1, 1), shared_bytes, values)
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
