"""What computes for a classifier: sessions on the GPU, or one on the CPU. Sessions and answers are the commands'."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from app.cuda import device
from app.layers import Shape
from app.network.graph import Graph
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.plan import plan
from app.runtime.cpu_session import CpuSession
from app.runtime.onnx_session import cpu_session

if TYPE_CHECKING:
    from app.runtime.session import Session
    from app.runtime.stream_buffers import Outputs

STREAMS = 4
LEAST_CHUNK = 64  # images; sessions for fewer would be replaced at the next larger batch


class CpuEngine:
    """Runs images on the CPU; a session for each size of images is made at the first call."""

    def __init__(self) -> None:
        self._sessions: dict[Shape, CpuSession] = {}

    def run(self, graph: Graph, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Classify (N, C, H, W) images; return labels (N,) uint8 and scores (N, classes) float32."""
        labels = np.empty(len(images), np.uint8)
        scores = np.empty((len(images), graph.classes), np.float32)
        shape = graph.network.input_shape
        if shape not in self._sessions:
            self._sessions[shape] = cpu_session(graph)
        self._sessions[shape].run(images, labels, scores=scores)
        return labels, scores

    def close(self) -> None:
        """Free the sessions."""
        self._sessions.clear()


class GpuEngine:
    """Runs images on the GPU that is current when it is made, in any thread.

    A session for each size and type of images is made at the first call, and again where a larger batch comes; after
    the largest, calls allocate neither device nor page-locked memory.
    """

    def __init__(self, choices: Choices) -> None:
        import cupy

        card = device.describe_gpu()
        self._arch = card["architecture"]
        self._choices = replace(choices, tuning=tuning.load(card["name"]))
        self._card = cupy.cuda.Device()
        self._sessions: dict[tuple[Shape, str], Session] = {}
        self._outputs: dict[tuple[Shape, str], Outputs] = {}

    def run(self, graph: Graph, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Classify (N, C, H, W) images; return labels (N,) uint8 and scores (N, classes), copies of the caller's own.

        Raises UserError for kernels that cannot serve the network, and where memory is short.
        """
        from app.runtime.session import default_chunk
        from app.runtime.stream_buffers import Outputs

        with device.gpu_errors(), self._card:
            count, chunk = len(images), default_chunk(len(images))
            key = (graph.network.input_shape, images.dtype.name)
            session = self._session(key, graph, chunk)
            held = self._outputs.get(key)
            if held is None or len(held.labels) < count:
                held = self._outputs[key] = session.outputs(count, logits=True)
            assert held.logits is not None
            outputs = Outputs(held.labels[:count], held.logits[:count])
            # Not ``run``: a captured graph saves nothing beside the copy to page-locked memory, would hold memory for
            # each batch size, and its capture fails where other libraries of the program wait for the whole device.
            session.submit(images, outputs, chunk=min(chunk, session.chunk))
            session.wait()
            return outputs.labels.copy(), held.logits[:count].copy()

    def _session(self, key: tuple[Shape, str], graph: Graph, chunk: int) -> Session:
        from app.runtime.session import Session

        session = self._sessions.get(key)
        if session is None or (session.chunk < chunk and not session.shrunk):
            if session is not None:
                self._sessions.pop(key).close()
            execution = plan(graph, self._arch, self._choices, input_dtype=key[1])
            wanted = 1 << (max(chunk, LEAST_CHUNK) - 1).bit_length()
            session = self._sessions[key] = Session(execution, chunk=wanted, streams=STREAMS)
        return session

    def close(self) -> None:
        """Free the memory of all sessions."""
        with self._card:
            for session in self._sessions.values():
                session.close()
        self._sessions.clear()
        self._outputs.clear()
