"""Open and run a classifier's engines: one for each shape and type of image."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from app.base.processor import core_count
from app.cuda import device as devices
from app.engine.interface import Engine
from app.engine.opening import open_engine
from app.layers import Shape
from app.network.graph import Graph

if TYPE_CHECKING:
    from app.engine.classifier.arguments import ImageBatch
    from app.planning.matching import Choices

Form = tuple[Shape, np.dtype]  # shape and type of images
BYTES = np.dtype(np.uint8)  # NumPy's only object for this dtype, so ``is`` compares


class Engines:
    """The CPU engines of one ``Classifier``, one for each shape and dtype of images. ``CardEngines`` has GPU engines.

    The first call with a new shape or dtype opens its engine. Only one thread may call at a time. choices: kernel
    options of a GPU, None on the CPU. arithmetic: the least precise dtype in which a layer multiplies; None until a
    GPU's first engine is open. device_context: makes the device the thread's current one.
    """

    device = "cpu"

    def __init__(self, choices: Choices | None = None) -> None:
        self.arithmetic: str | None = "float32"
        self.device_context: AbstractContextManager[object] = nullcontext()
        self._choices = choices
        self._engines: dict[Form, Engine] = {}
        # Engine and its shape for uint8 images of known shapes: by a batch's shape without N, and by a single image's.
        self._of_batches: dict[Shape, tuple[Engine, Shape]] = {}
        self._of_singles: dict[Shape, tuple[Engine, Shape]] = {}

    def engine_for(self, graph: Graph, dtype: np.dtype) -> Engine:
        """Return the engine for a graph and a type of image. Raises UserError if no kernels can compute the network."""
        form = (graph.network.input_shape, dtype)
        if form not in self._engines:
            engine = self._engines[form] = open_engine(graph, self._choices, device=self.device, dtype=dtype.name)
            self.arithmetic = engine.arithmetic
        return self._engines[form]

    def run(self, images: Any, batch: ImageBatch) -> tuple[np.ndarray, Any]:
        """Classify images in host memory; return labels, and either the logits or a function that returns them.

        images: the caller's object. batch: the same images, checked. Raises UserError, also if memory is short.
        """
        with self.device_context:
            engine = self.engine_for(batch.graph, batch.images.dtype)
            if type(images) is np.ndarray and images.dtype == np.uint8 and images.size:
                known = self._of_singles if batch.single else self._of_batches
                known[images.shape[not batch.single :]] = engine, (-1, *batch.images.shape[1:])
        return self.compute_results(engine, batch.images)

    def compute_results(self, engine: Engine, images: np.ndarray) -> tuple[np.ndarray, Any]:
        """Return labels, and either the logits or a function that returns them. images: (N, C, H, W), checked."""
        return engine.run(images)

    def match_known_shape(self, images: Any) -> tuple[Engine, np.ndarray, bool] | None:
        """Return engine, images as (N, C, H, W), and whether the caller gave a single image; None for unknown images.

        Images are known if they are uint8 and ``run`` has had the same shape before. They need no checks.
        """
        if type(images) is not np.ndarray or images.dtype is not BYTES or not images.flags.c_contiguous:
            return None
        shape = images.shape
        found = self._of_batches.get(shape[1:])
        single = found is None
        if single:
            found = self._of_singles.get(shape)
        return None if found is None or not images.size else (found[0], images.reshape(found[1]), single)

    def empty(self, shape: Shape) -> np.ndarray:
        """Return an uninitialised uint8 array of this shape, in the kind of memory that the device reads fastest."""
        return np.empty(shape, BYTES)

    def describe(self) -> dict[str, Any]:
        """Return the device and the software used so far, as reports record both."""
        with self.device_context:
            found = devices.describe_gpu() if self.device == "cuda" else devices.describe_cpu(core_count())
        for engine in self._engines.values():
            found |= engine.software
        return found

    def close(self) -> None:
        """Close all engines."""
        with self.device_context:
            for engine in self._engines.values():
                engine.close()
        self._engines, self._of_batches, self._of_singles = {}, {}, {}
