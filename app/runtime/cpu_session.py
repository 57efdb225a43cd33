"""The CPU session: the NumPy references in cache-sized chunks, one thread per core; ``OnnxSession`` is like it."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from tqdm import tqdm

from app.interrupts import deferred_interrupts
from app.layers import Layer
from app.network.graph import REFERENCE_CHUNK, Graph
from app.processor import check_room, keep_freed_memory, one_blas_thread, usable_cores


@contextmanager
def progress_bar(total: int, **looks: Any) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal. Yields a function to call with the images done; it also handles Ctrl-C."""
    with (
        deferred_interrupts() as check_interrupt,
        tqdm(total=total, disable=not sys.stderr.isatty(), **looks) as bar,
    ):

        def progress(count: int) -> None:
            check_interrupt()
            bar.update(count)

        yield progress


@dataclass(frozen=True)
class Part:
    """What a session times by itself; flops and bytes of one image."""

    name: str
    flops: int
    nbytes: int


class CpuSession:
    """A graph ready to run on the processor, in float32.

    An image's scores have the same bits in every batch and chunk, at every place, with any number of threads: see
    ``app.layers.products``.

    seconds: name of a part → time spent in it so far, summed over the threads. Each thread works on chunks, while
    the matrix library underneath uses one thread per call.
    """

    engine = "NumPy"
    software: Mapping[str, str] = {}  # further libraries that compute → versions

    def __init__(self, graph: Graph) -> None:
        keep_freed_memory()
        self.graph = graph
        self.threads = usable_cores()
        check_room(self.threads)
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def chunk_for(self, images: int) -> int:
        """Return images per chunk: REFERENCE_CHUNK, or fewer if threads would otherwise have no work."""
        return max(1, min(REFERENCE_CHUNK, -(-images // self.threads)))

    def threads_for(self, images: int) -> int:
        """Return how many threads this many images keep busy: each chunk keeps one busy."""
        return min(self.threads, -(-images // self.chunk_for(images)))

    @property
    def parts(self) -> tuple[Part, ...]:
        """What ``seconds`` has a time of: every layer."""
        steps = self.graph.steps
        return tuple(Part(one.layer.name, one.layer.flops(one.in_shape), one.activation_bytes) for one in steps)

    def run(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        progress: Callable[[int], object] | None = None,
        *,
        scores: np.ndarray | None = None,
    ) -> None:
        """Classify (N, C, H, W) images into labels (N) uint8 and, if given, scores (N, classes) float32.

        progress: called with the number of images done.
        """
        chunk = self.chunk_for(len(images))

        def classify(start: int) -> None:
            part = images[start : start + chunk]
            found, labels[start : start + chunk], spent = self.compute(part)
            if scores is not None:
                scores[start : start + chunk] = found
            with self._lock:
                for name, seconds in spent.items():
                    self.seconds[name] = self.seconds.get(name, 0.0) + seconds
                if progress is not None:
                    progress(len(part))

        # If a chunk fails, or the user interrupts, map drops the chunks that have not begun.
        with one_blas_thread(), ThreadPoolExecutor(self.threads) as pool:
            for _ in pool.map(classify, range(0, len(images), chunk)):
                pass

    def compute(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
        """Return scores (B, classes) and labels (B) of one chunk (B, C, H, W), and the seconds in each part."""
        spent: dict[str, float] = {}
        last = perf_counter()

        def after_layer(layer: Layer) -> None:
            nonlocal last
            now = perf_counter()
            spent[layer.name] = now - last
            last = now

        return *self.graph.forward(images, np.float32, after_layer), spent
