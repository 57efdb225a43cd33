"""What computes for a classifier on the GPU: the commands' sessions for images in host memory, else ``OnCard``.

No CUDA graph is captured here: it would save nothing beside the copy to page-locked memory, would hold memory for one
batch size, and a capture fails where other parts of the program wait for the whole device meanwhile.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.classifier.arguments import BadArgumentError, check_bytes, shaped
from app.classifier.card_arrays import as_stream, uploaded_copy, viewed
from app.cuda import device
from app.layers import Shape
from app.network.graph import Graph
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.plan import ExecutionPlan, plan
from app.runtime.on_card import OnCard
from app.runtime.session import Session, default_chunk
from app.runtime.stream_buffers import Outputs

STREAMS = 4
LEAST_CHUNK = 64  # images; sessions for fewer would be replaced at the next larger batch
ALIGNED = 16  # bytes; kernels read images in words of this size
Form = tuple[Shape, str]  # shape and type of images


class GpuEngine:
    """Runs images on the GPU that is current when it is made, from any thread, one call at a time.

    The first call with images of some size and type compiles and allocates, and so does a larger batch; after the
    largest, calls allocate nothing but the results.
    """

    def __init__(self, choices: Choices) -> None:
        card = device.describe_gpu()
        self.arithmetic: str | None = None  # coarsest type of any layer's multiplication, once that is planned
        self._arch = card["architecture"]
        self._choices = replace(choices, tuning=tuning.load(card["name"]))
        self._card = cupy.cuda.Device()
        self._threads = threading.local()
        self._sessions: dict[Form, Session] = {}
        self._outputs: dict[Form, Outputs] = {}
        self._on_card: dict[Form, OnCard] = {}
        self._given: dict[tuple[Shape, np.dtype], OnCard] = {}  # by batches' shape without N and type, as they come

    def run(self, graph: Graph, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Classify (N, C, H, W) images in the host's memory; return labels (N,) uint8 and scores (N, classes) float32.

        Raises UserError for kernels that cannot serve the network, and where memory is short.
        """
        count = len(images)
        if not count:
            return np.empty(0, np.uint8), np.empty((0, graph.classes), np.float32)
        chunk = default_chunk(count)
        with self._card:
            form = (graph.network.input_shape, images.dtype.name)
            session = self._session(form, graph, chunk)
            held = self._outputs.get(form)
            if held is None or len(held.labels) < count:
                held = self._outputs[form] = session.outputs(count, logits=True)
            assert held.logits is not None
            outputs = Outputs(held.labels[:count], held.logits[:count])
            session.submit(images, outputs, chunk=min(chunk, session.chunk))
            session.wait()
            return outputs.labels.copy(), held.logits[:count].copy()

    def _session(self, form: Form, graph: Graph, chunk: int) -> Session:
        session = self._sessions.get(form)
        if session is None or (session.chunk < chunk and not session.shrunk):
            if session is not None:
                self._sessions.pop(form).close()
            wanted = 1 << (max(chunk, LEAST_CHUNK) - 1).bit_length()
            session = self._sessions[form] = Session(self._plan(form, graph), chunk=wanted, streams=STREAMS)
        return session

    def _plan(self, form: Form, graph: Graph) -> ExecutionPlan:
        found = plan(graph, self._arch, self._choices, input_dtype=form[1])
        self.arithmetic = found.arithmetic
        return found

    def run_on_card(self, graph: Graph, images: Any, stream: Any = None) -> tuple[cupy.ndarray, cupy.ndarray, bool]:
        """Enqueue images on a stream, None for CuPy's current one; return labels, scores, and whether it is one image.

        images: on the card, in an array of any library, or (N, C, H, W) in the host's memory. Raises UserError, for
        wrong images BadArgumentError.
        """
        if runtime.getDevice() != self._card.id:
            with self._card:
                return self.run_on_card(graph, images, stream)
        if not hasattr(self._threads, "bound"):  # without a context, a thread's launches by the driver would fail
            runtime.setDevice(self._card.id)
            self._threads.bound = True
        if stream is not None:
            with as_stream(stream):
                return self.run_on_card(graph, images)
        current = cupy.cuda.get_current_stream()
        array = uploaded_copy(images, current) if isinstance(images, np.ndarray) else viewed(images, current)
        if array.data.device_id != self._card.id:
            raise BadArgumentError(
                f"the images lie on GPU {array.data.device_id}, the classifier on GPU {self._card.id}: copy them there"
            )
        running, single = self._given.get((array.shape[1:], array.dtype)), False
        if running is None:
            array, running, single = self._prepared(graph, array)
        if not array.flags.c_contiguous or array.data.ptr % ALIGNED:
            array = array.copy()
        return *running.run(array, current), single

    def fetched(self, labels: cupy.ndarray, scores: cupy.ndarray, stream: Any) -> tuple[np.ndarray, np.ndarray]:
        """Wait for what was enqueued on the stream and return copies in the host's memory."""
        with self._card:
            wait = cupy.cuda.get_current_stream() if stream is None else as_stream(stream)
            return labels.get(stream=wait), scores.get(stream=wait)

    def _prepared(self, graph: Graph, array: cupy.ndarray) -> tuple[cupy.ndarray, OnCard, bool]:
        """Return images of a form that is new here as a session takes them, what runs them, and whether it is one."""
        batch = shaped(array, graph, array.dtype.name)
        check_bytes(batch.graph, array.dtype.name)
        images = batch.images if array.dtype == np.uint8 else batch.images.astype(np.float32, copy=False)
        form = (batch.graph.network.input_shape, images.dtype.name)
        running = self._on_card.get(form)
        if running is None:
            running = self._on_card[form] = OnCard(self._plan(form, batch.graph))
        if not batch.single and images.dtype == array.dtype:
            self._given[array.shape[1:], array.dtype] = running
        return images, running, batch.single

    def describe(self) -> dict[str, Any]:
        """Describe the card, as reports do."""
        with self._card:
            return device.describe_gpu()

    def close(self) -> None:
        """Free the memory of all sessions."""
        with self._card:
            for session in self._sessions.values():
                session.close()
            for running in self._on_card.values():
                running.close()
        self._sessions, self._outputs, self._on_card, self._given = {}, {}, {}, {}
