"""A whole batch without copies: the kernels read the images and write the labels in host memory."""

from collections.abc import Sequence

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.memory import device_array, is_pinned, mapped
from app.kernels.launch import Kernel
from app.planning.plan import IMAGES, LABELS, LOGITS, ExecutionPlan
from app.runtime.stream_buffers import Outputs, Weights, bound, copy


class Direct:
    """A whole batch in place: the first kernel reads the images over the bus, the last one writes the labels over it.

    There is no copy to wait for. Raises DeviceMemoryError if the buffers in between do not fit. Use it only if
    ``serves`` returns True.
    """

    def __init__(
        self, plan: ExecutionPlan, kernels: Sequence[Kernel], weights: Weights, images: np.ndarray, outputs: Outputs
    ) -> None:
        self._count, self._outputs = len(images), outputs
        host = {IMAGES: mapped(images), LABELS: mapped(outputs.labels)}
        self._own = {
            name: device_array(self._count * n, dtype) for name, (dtype, n) in plan.buffers.items() if name not in host
        }
        self._launches = bound(plan, kernels, weights, host | self._own, self._count)

    @staticmethod
    def serves(plan: ExecutionPlan, arrays: Sequence[np.ndarray]) -> bool:
        """Whether the plan's first kernel can read host memory, and the arrays are page-locked and 16-byte aligned."""
        return plan.nodes[0].variant.reads_host and all(is_pinned(a) and a.ctypes.data % 16 == 0 for a in arrays)

    @property
    def arrays(self) -> list[cupy.ndarray]:
        """All arrays that a run writes on the device; images and labels lie in host memory."""
        return [*self._own.values(), *(array for launch in self._launches for array in launch.workspace)]

    @property
    def nbytes(self) -> int:
        """Device memory held."""
        return sum(array.nbytes for array in self.arrays)

    def enqueue(self, stream: cupy.cuda.Stream) -> None:
        """Enqueue the batch on one stream and return at once."""
        for launch in self._launches:
            launch(stream.ptr, self._count)
        logits = self._outputs.logits
        if logits is not None:  # many, and written in pieces too small for the bus
            rows = logits[: self._count]
            copy(rows.ctypes.data, self._own[LOGITS].data.ptr, rows.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
