"""Run this program as one of the compared engines, through the engine of the main job."""

from collections.abc import Iterable
from contextlib import suppress

import cupy
import numpy as np

from app.base.errors import UserError
from app.cuda.graphs import KernelGraph
from app.engine.gpu import GpuEngine
from app.engine.interface import Outputs
from app.engine.request import default_chunk_size
from app.engine.small_batches import MOST
from app.lab.batch import UNWRITTEN
from app.lab.peers.rounds import Engine
from app.network.graph import Graph
from app.planning.matching import Choices
from app.planning.plan import IMAGES, LABELS, plan
from app.planning.tuning import Tuning


class OurEngine(Engine):
    """The main job's engine; times on the card are of one chunk. Raises UserError if that exceeds device memory."""

    def __init__(
        self,
        graph: Graph,
        images: np.ndarray,
        labels: np.ndarray,
        precision: str,
        arch: str,
        known: Tuning,
        sparse: bool = True,
    ) -> None:
        execution = plan(graph, arch, Choices(precision, tuning=known, sparse=sparse))
        count = len(images)
        self.arithmetic = execution.arithmetic
        self._images, self._outputs, self._count = images, Outputs(labels, None), count
        self._engine = GpuEngine(execution, chunk=default_chunk_size(count))
        self._resident = GpuEngine(execution, chunk=count, streams=1)
        if self._resident.shrunk:
            raise UserError(f"{count:,} images do not fit in device memory at once")
        self._buffers = self._resident.stream_buffers[0]
        # As PyTorch's fastest settings for few images do: one graph saves the host a call for each kernel.
        in_graph = count <= MOST and all(launch.launches_only_kernels for launch in self._buffers.launches)
        self._graph = KernelGraph() if in_graph else None
        if self._graph is not None:
            for launch in self._buffers.launches:
                launch.add_to(self._graph, count)
        kernels = ", ".join(f"{node.name}: {node.variant.name}" for node in execution.nodes)
        self.note = f"chunks of {self._engine.chunk:,}; {kernels}"

    def upload_images(self) -> None:
        _poison_arrays(self._resident.arrays)
        self._buffers.named[IMAGES].data.copy_from_host(self._images.ctypes.data, self._images.nbytes)

    def enqueue(self) -> None:
        if self._graph is not None:
            self._graph.launch(self._buffers.stream.ptr)
            return
        for launch in self._buffers.launches:
            launch(self._buffers.stream.ptr, self._count)

    def synchronize(self) -> None:
        cupy.cuda.runtime.deviceSynchronize()

    def download_labels(self) -> np.ndarray:
        labels: np.ndarray = cupy.asnumpy(self._buffers.named[LABELS][: self._count])
        return labels

    def poison_buffers(self) -> None:
        # Only what the next run writes: overwriting other memory would displace it from the L2 cache.
        direct, streams = self._engine.direct, self._engine.stream_buffers
        _poison_arrays([array for buffers in streams for array in buffers.arrays] if direct is None else direct.arrays)

    def run(self) -> None:
        self._engine.run(self._images, self._outputs)

    def close(self) -> None:
        if self._graph is not None:
            self.synchronize()
            self._graph.free()
        self._engine.close()
        self._resident.close()


def runs_sparse_kernels(graph: Graph, precision: str, *, arch: str, known: Tuning) -> bool:
    """Return whether this program runs ``graph`` with a kernel for 2:4 sparse weights. known: tuned settings."""
    with suppress(UserError):  # the engine's row tells the reason
        return any(node.variant.sparse for node in plan(graph, arch, Choices(precision, tuning=known)).nodes)
    return False


def _poison_arrays(arrays: Iterable[cupy.ndarray]) -> None:
    """Fill arrays with 0xFF bytes (white pixels, NaN features, invalid labels), so that missing writes show."""
    for array in arrays:
        array.data.memset(UNWRITTEN, array.nbytes)
