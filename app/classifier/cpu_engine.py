"""What computes for a classifier on the CPU: the sessions of the commands."""

from typing import Any

import numpy as np

from app.cuda import device
from app.layers import Shape
from app.network.graph import Graph
from app.processor import usable_cores
from app.runtime.cpu_session import CpuSession
from app.runtime.onnx_session import cpu_session


class CpuEngine:
    """Runs images on the CPU; a session for each size of images is made at the first call."""

    arithmetic: str | None = "float32"  # type of the multiplications

    def __init__(self) -> None:
        self._sessions: dict[Shape, CpuSession] = {}

    def run(self, graph: Graph, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Classify (N, C, H, W) images; return labels (N,) uint8 and scores (N, classes) float32."""
        labels = np.empty(len(images), np.uint8)
        scores = np.empty((len(images), graph.classes), np.float32)
        shape = graph.network.input_shape
        if not len(images):
            return labels, scores
        if shape not in self._sessions:
            self._sessions[shape] = cpu_session(graph)
        self._sessions[shape].run(images, labels, scores=scores)
        return labels, scores

    def describe(self) -> dict[str, Any]:
        """Describe the processor, and what computed on it so far, as reports do."""
        found = device.describe_cpu(usable_cores())
        for session in self._sessions.values():
            found |= session.software
        return found

    def close(self) -> None:
        """Free the sessions."""
        self._sessions.clear()
