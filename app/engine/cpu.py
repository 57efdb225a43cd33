"""Run a network on the CPU: NumPy layers on chunks that fit the cache, with one thread per core."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from app.base.clock import Timer
from app.base.processor import (
    check_address_space,
    core_count,
    core_numbers,
    format_cores,
    keep_freed_memory,
    one_blas_thread,
)
from app.cuda.device import describe_cpu
from app.engine.interface import BlockSource, Engine, EngineDescription, FeedingOptions, Outputs, Progress
from app.layers import Layer
from app.network.graph import REFERENCE_CHUNK, Graph

THREAD_FLOPS = 80_000_000
"""FLOPs that one core computes in a millisecond or two: a thread with fewer costs more time than it saves."""


class TimedPart(NamedTuple):
    """A part of a network that is timed separately. flops, nbytes: FLOPs, and bytes moved, for one image."""

    name: str
    flops: int
    nbytes: int


class CpuEngine(Engine):
    """Run a graph on the CPU by NumPy, in float32. Threads may share it.

    The scores of an image have the same bits in every batch and chunk, at every index, with any number of threads: see
    ``app.layers.products``. fed: not None if threads feed blocks to the engine, one per core; the matrix library then
    uses one thread per call. seconds: maps the name of a part to the seconds that ``run`` has spent in it, summed over
    the threads, each of which computes whole chunks.
    """

    arithmetic = "float32"
    library = "NumPy"
    block = REFERENCE_CHUNK

    def __init__(self, graph: Graph, dtype: str = "uint8", fed: FeedingOptions | None = None) -> None:
        keep_freed_memory()
        self.graph, self.dtype = graph, dtype
        self.threads = self.feeders = core_count()
        check_address_space(self.threads)
        self._least = min(REFERENCE_CHUNK, -(-THREAD_FLOPS // max(1, sum(part.flops for part in self.timed_parts))))
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._guard = ExitStack()
        if fed is not None:
            self._guard.enter_context(one_blas_thread())

    def images_per_chunk(self, images: int) -> int:
        """Return the images per chunk: REFERENCE_CHUNK, or fewer so that each thread gets a chunk worth starting."""
        threads = max(1, min(self.threads, images // self._least))
        return max(1, min(REFERENCE_CHUNK, -(-images // threads)))

    def thread_count(self, images: int) -> int:
        """Return how many threads to use for ``images`` images: at most one per chunk."""
        return min(self.threads, -(-images // self.images_per_chunk(images)))

    @property
    def timed_parts(self) -> tuple[TimedPart, ...]:
        """Return the layers, which are timed separately; ``seconds`` has the time of each."""
        steps = self.graph.steps
        return tuple(TimedPart(one.layer.name, one.layer.flops(one.in_shape), one.activation_bytes) for one in steps)

    def run(self, images: np.ndarray, outputs: Outputs | None = None, progress: Progress | None = None) -> Outputs:
        """Classify images (N, C, H, W); return ``outputs``, or new ones. progress: called with each chunk's length."""
        if outputs is None:
            scores = np.empty((len(images), self.graph.class_count), np.float32)
            outputs = Outputs(np.empty(len(images), np.uint8), scores)
        labels, logits = outputs
        chunk = self.images_per_chunk(len(images))

        def classify_chunk(start: int) -> None:
            part = images[start : start + chunk]
            found, labels[start : start + chunk], spent = self.compute_chunk(part)
            if logits is not None:
                logits[start : start + chunk] = found
            with self._lock:
                for name, seconds in spent.items():
                    self.seconds[name] = self.seconds.get(name, 0.0) + seconds
                if progress is not None:
                    progress(len(part))

        with one_blas_thread(), ExitStack() as stack:
            several = self.thread_count(len(images)) > 1
            # If a chunk fails, or the user interrupts, the pool's map cancels the chunks that have not begun.
            each = stack.enter_context(ThreadPoolExecutor(self.threads)).map if several else map
            for _ in each(classify_chunk, range(0, len(images), chunk)):
                pass
        return outputs

    def stream(
        self,
        blocks: Iterable[np.ndarray],
        pair: tuple[Outputs, Outputs] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[np.ndarray]:
        """Classify arrays of images one by one; yield labels (N,). pair: outputs to use in turn; None: new ones."""
        for index, images in enumerate(blocks):
            outputs = Outputs(np.empty(len(images), np.uint8)) if pair is None else pair[index % 2]
            yield self.run(images, outputs, progress).labels[: len(images)]

    def prepare_feeding(self, index: int) -> Callable[[BlockSource], None]:
        """Return the function by which a feeding thread classifies a source's blocks; zeros fill up short blocks.

        ONNX Runtime computes the same bits for an image only in blocks of equal size; NumPy does so in any block.
        """
        images = np.zeros((self.block, *self.graph.network.input_shape), self.dtype)

        def classify(source: BlockSource) -> None:
            while (block := source.take_block()) is not None:
                images[block.count :] = 0
                if block.read(images[: block.count]):
                    timer = Timer()
                    scores, labels, _ = self.compute_chunk(images)
                    block.deliver(labels[: block.count], scores[: block.count], compute=timer.seconds)

        return classify

    def compute_chunk(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
        """Return scores (B, classes), labels (B,) and the seconds of each part for one chunk of images (B, C, H, W)."""
        spent: dict[str, float] = {}
        timer = Timer()

        def record_layer_time(layer: Layer) -> None:
            spent[layer.name] = timer.lap()

        return *self.graph.forward(images, np.float32, record_layer_time), spent

    def describe(self) -> EngineDescription:
        """Return the processor's name, the cores that are used, and the arithmetic."""
        cores = f"cpu:{format_cores(core_numbers())}"
        return EngineDescription(cores, describe_cpu(self.threads)["name"], f"fp32 by {self.library}", "compute")

    def close(self) -> None:
        """Restore the matrix library's usual number of threads."""
        self._guard.close()
