"""Define the interface of engines: one network with its weights on one device, for images of one shape and type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, Self

import numpy as np

CPU_ENGINE, NUMPY = "LENET_CPU_ENGINE", "numpy"  # a variable that names the engine on the CPU, and a value of it
Progress = Callable[[int], object]  # called with the number of images that were just finished


class Outputs(NamedTuple):
    """Result arrays in host memory: labels (N,) uint8; logits (N, classes) float32, or None if not wanted.

    If the network ends in a softmax, the logits are its probabilities.
    """

    labels: np.ndarray
    logits: np.ndarray | None = None

    def slice_view(self, part: slice) -> Outputs:
        """Return views of the results for a slice of the images."""
        return Outputs(self.labels[part], None if self.logits is None else self.logits[part])

    @property
    def arrays(self) -> list[np.ndarray]:
        """Return [labels], or [labels, logits] if there are logits."""
        return [self.labels] if self.logits is None else [self.labels, self.logits]

    def copy(self) -> Outputs:
        """Return a copy in pageable memory. Logits in GPU memory are not copied."""
        return Outputs(self.labels.copy(), self.logits.copy() if isinstance(self.logits, np.ndarray) else self.logits)


class Block(Protocol):
    """A block of images that one thread reads and classifies. count: number of images."""

    count: int

    def read(self, images: np.ndarray) -> bool:
        """Read the pixels into ``images`` (count, C, H, W). Return False if that fails: the block is then skipped."""

    def deliver(
        self, labels: np.ndarray, logits: np.ndarray | None, *, wait: float = 0.0, compute: float = 0.0
    ) -> None:
        """Take a copy of the block's labels (count,) and logits (count, classes), if any: the engine reuses the arrays.

        wait: seconds that the thread waited for the device. compute: seconds that the thread itself computed.
        """


class BlockSource(Protocol):
    """Gives one thread of the host the blocks of images that it reads and classifies, one after another."""

    def take_block(self, *, wait: bool = True) -> Block | None:
        """Return the next block. Return None at the end, or without ``wait`` if none is available now."""


class FeedingOptions(NamedTuple):
    """Options of an engine into which several threads read blocks. logits: whether it delivers logits with the labels.

    compressed: whether threads decompress blocks, which takes milliseconds: each core gets a thread, with small blocks.
    """

    logits: bool = False
    compressed: bool = False


class EngineDescription(NamedTuple):
    """Device and arithmetic of an engine. device: ``cuda:0`` or ``cpu:0-3`` (its cores). name: of the GPU or processor.

    arithmetic: such as ``fp32x on sm_90a`` or ``fp32 by NumPy``; engines with equal arithmetic give equal results to
    the bit. limit: the slower of copies and kernels (``bus`` or ``kernels``); ``compute`` on a processor.
    """

    device: str
    name: str
    arithmetic: str
    limit: str


class Engine(ABC):
    """One network on one device, opened by ``opening.open_engine``. A context manager that closes the engine.

    arithmetic: the coarsest type in which any layer multiplies. software: version of each further library that
    computes. feeders: number of threads that may call ``prepare_feeding``, if the engine was opened for feeding. block:
    most images that each feeder reads at a time.
    """

    arithmetic: str
    software: Mapping[str, str] = {}
    feeders: int
    block: int

    @abstractmethod
    def run(self, images: np.ndarray, outputs: Outputs | None = None, progress: Progress | None = None) -> Outputs:
        """Classify images (N, C, H, W) and wait; return ``outputs``, or, if that is None, new ones with logits."""

    @abstractmethod
    def stream(
        self,
        blocks: Iterable[np.ndarray],
        pair: tuple[Outputs, Outputs] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[np.ndarray]:
        """Classify arrays of images one after another in constant memory; yield the labels (N,) of each.

        pair: two outputs that the arrays use alternately, so that labels stay valid while the next array runs; None
        allocates outputs of the first array's length. An array must not change until its labels are yielded.
        """

    def prepare_feeding(self, index: int) -> Callable[[BlockSource], None]:
        """Prepare the calling thread as feeder ``index``, from 0; return a function that classifies a source's blocks.

        Call this and ``describe`` only if the engine was opened for feeding.
        """
        raise NotImplementedError

    def describe(self) -> EngineDescription:
        """Return device and arithmetic. On a GPU, time the copy and the kernels of a block for some milliseconds."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """Free the engine's memory and streams. No call may be running."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
