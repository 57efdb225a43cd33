"""What an engine is: one network with its weights, ready on one device for images of one shape and type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, Self

import numpy as np

CPU_ENGINE, NUMPY = "LENET_CPU_ENGINE", "numpy"  # a variable that names the engine on the CPU, and a value of it
Progress = Callable[[int], object]  # called with a number of images that are done


class Outputs(NamedTuple):
    """Arrays for results in the host's memory: labels (N,) uint8; logits (N, classes) float32, None if not wanted.

    Of a network that ends in a softmax, the logits are its probabilities.
    """

    labels: np.ndarray
    logits: np.ndarray | None = None

    def of(self, part: slice) -> Outputs:
        """Return the rows of some images."""
        return Outputs(self.labels[part], None if self.logits is None else self.logits[part])

    def copy(self) -> Outputs:
        """Return a copy in the program's ordinary memory."""
        return Outputs(self.labels.copy(), None if self.logits is None else self.logits.copy())


class Block(Protocol):
    """Images that one thread reads and classifies together. count: how many."""

    count: int

    def read(self, images: np.ndarray) -> bool:
        """Read the pixels into (count, C, H, W) images; return False if that fails: the block is over."""

    def deliver(
        self, labels: np.ndarray, logits: np.ndarray | None, *, wait: float = 0.0, compute: float = 0.0
    ) -> None:
        """Take labels (count,) and logits (count, classes), which will be overwritten.

        wait, compute: seconds that the thread waited for the device, or computed.
        """


class Source(Protocol):
    """Where one thread takes its blocks."""

    def take(self, *, wait: bool = True) -> Block | None:
        """Return the next block; None at the end, or, without ``wait``, if there is none now."""


class Feeding(NamedTuple):
    """How several threads will feed an engine. logits: deliver them, too.

    compressed: blocks take milliseconds to decompress, so each core gets a thread, and blocks are small.
    """

    logits: bool = False
    compressed: bool = False


class Description(NamedTuple):
    """What computes. device: such as ``cuda:0`` or ``cpu:0-3`` (its cores). name: of the card or processor.

    arithmetic: such as ``fp32x on sm_90a`` or ``fp32 by NumPy``; where two engines have the same, so have their
    results, to the bit. limit: the slower of copies and kernels (``bus`` or ``kernels``); ``compute`` on a processor.
    """

    device: str
    name: str
    arithmetic: str
    limit: str


class Engine(ABC):
    """A context manager, reusable for any number of images; ``opening.open_engine`` makes one.

    arithmetic: the coarsest type of any layer's multiplication. software: further libraries that compute → versions.
    feeders: how many threads may ``feed`` it, if it was opened for that. block: images that they read at a time, at
    most.
    """

    arithmetic: str
    software: Mapping[str, str] = {}
    feeders: int
    block: int

    @abstractmethod
    def run(self, images: np.ndarray, outputs: Outputs | None = None, progress: Progress | None = None) -> Outputs:
        """Classify (N, C, H, W) images; return the outputs, readable: those given, or else new ones with logits."""

    @abstractmethod
    def stream(
        self,
        blocks: Iterable[np.ndarray],
        pair: tuple[Outputs, Outputs] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[np.ndarray]:
        """Classify arrays of images one after another in constant memory; yield the labels (N,) of each.

        pair: outputs that the arrays' results are written to in turn, so labels stay until the next but one; None: of
        the first array's length. An array must not change until its labels have come.
        """

    @abstractmethod
    def feed(self, index: int) -> Callable[[Source], None]:
        """Prepare the calling thread, one of ``feeders``; return its body, which runs until the source's end."""

    @abstractmethod
    def describe(self) -> Description:
        """Say what computes; on a GPU that is fed, this runs a block for some milliseconds."""

    @abstractmethod
    def close(self) -> None:
        """Free everything; nothing may run any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
