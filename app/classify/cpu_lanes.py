"""The lanes of a processor: one for each core that this process may use, with NumPy or ONNX Runtime."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from app.classify.flights import Lane
from app.classify.pieces import Place
from app.cuda import device
from app.network.graph import REFERENCE_CHUNK
from app.processor import core_names, one_blas_thread, own_cores
from app.runtime.onnx_session import cpu_session

if TYPE_CHECKING:
    from app.classify.engine import EngineSettings


class CpuLanes:
    """A lane computes blocks of exactly ``REFERENCE_CHUNK`` images: the last one of a piece is filled up with zeros.

    NumPy's engine gives an image the same bits in every block; ONNX Runtime promises that only for blocks of one shape.
    The matrix library uses one thread per call until ``close``.
    """

    size = REFERENCE_CHUNK

    def __init__(self, settings: EngineSettings) -> None:
        self._session = cpu_session(settings.graph)
        self.count = self._session.threads
        self._shape = (self.size, *settings.graph.network.input_shape)
        self._dtype = np.dtype(settings.dtype)
        self._label = settings.label
        self._guard = ExitStack()
        self._guard.enter_context(one_blas_thread())

    def open(self, index: int) -> Callable[[Lane], None]:
        """Allocate a lane's block of images."""
        images = np.zeros(self._shape, self._dtype)

        def body(lane: Lane) -> None:
            while (block := lane.take()) is not None:
                some = images[: block.count]
                images[block.count :] = 0
                if block.read(some):
                    begin = perf_counter()
                    scores, labels, _ = self._session.compute(images)
                    block.deliver(labels[: block.count], scores[: block.count], compute=perf_counter() - begin)

        return body

    def place(self) -> Place:
        """Describe the processor and its cores."""
        name = device.describe_cpu(self.count)["name"]
        return Place(
            host=platform.node(),
            device=self._label or f"cpu:{core_names(own_cores())}",
            name=name,
            arithmetic=f"fp32 by {self._session.engine}",
            lanes=self.count,
            limit="compute",
        )

    def close(self) -> None:
        """Give the matrix library its threads back."""
        self._guard.close()
