"""Define the kinds of calls that are timed, and the callers: ``Classifier``, and PyTorch tuned for speed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from app.base.errors import UserError, choices_hint
from app.base.frozen import Frozen
from app.base.precision import BY_NAME
from app.engine.classifier import Classifier
from app.lab.peers import torch
from app.lab.peers.torch import Setting, TorchEngine
from app.network.graph import Graph

NETWORK = "lenet5"
ORDINARY, PINNED, CARD = "ordinary array", "page-locked array", "PyTorch tensor on the card"
ARRAYS = 8  # different arrays to call with in turn; with 10,000 images each, they exceed the card's L2 cache
OURS, EAGER, COMPILE = "ours", "torch-eager", "torch-compile"
STAGED, DIRECT = "staged", "copied directly"  # how PyTorch's images reach the card


class Kind(Frozen):
    """A kind of call of ``Classifier``. images: number of each call. source: where they lie.

    resident: whether a kernel that stays on the card answers. enqueues: whether it returns labels on the GPU at once.
    """

    name: str
    images: int
    precision: str
    source: str
    resident: bool = False
    enqueues: bool = False

    @property
    def description(self) -> str:
        """Return what the call does: number and location of the images, and the kind of answer."""
        answer = "enqueue" if self.enqueues else "to a label" if self.images == 1 else "to labels"
        count = "1 image" if self.images == 1 else f"{self.images:,} images"
        return f"{count}, {self.source}, {answer}" + ", resident" * self.resident


KINDS = (
    Kind("1", 1, "fp16", ORDINARY),
    Kind("1-resident", 1, "fp16", ORDINARY, resident=True),
    Kind("1-fp32x", 1, "fp32x", ORDINARY),
    Kind("1-fp32x-resident", 1, "fp32x", ORDINARY, resident=True),
    Kind("100", 100, "fp16", ORDINARY),
    Kind("10000", 10_000, "fp16", ORDINARY),
    Kind("10000-fp32x", 10_000, "fp32x", ORDINARY),
    Kind("10000-pinned", 10_000, "fp16", PINNED),
    Kind("100-enqueue", 100, "fp16", CARD, enqueues=True),
    Kind("100-card", 100, "fp16", CARD),
)


def parse_kinds(only: str | None) -> list[Kind]:
    """Return the kinds that ``--only`` names, by default all. Raises UserError for an unknown name."""
    by_name = {kind.name: kind for kind in KINDS}
    names = [*by_name] if only is None else only.split(",")
    for name in names:
        if name not in by_name:
            raise UserError(f"--only {only}: no row is called '{name}': {choices_hint(name, by_name)}")
    return [by_name[name] for name in names]


def image_indices(kind: Kind, total: int) -> list[np.ndarray]:
    """Return, for each of the ``ARRAYS`` arrays, which of ``total`` images it has: (kind.images,) int64."""
    starts = (at * total // ARRAYS for at in range(ARRAYS))
    return [(start + np.arange(min(kind.images, total))) % total for start in starts]


def make_input_arrays(kind: Kind, images: np.ndarray, copy_array: Callable[[np.ndarray], Any]) -> Sequence[Any]:
    """Return the kind's arrays of images, (N, H, W), or (H, W) for one. copy_array: copies one to ``kind.source``."""
    found = (images[indices, 0] for indices in image_indices(kind, len(images)))
    return [copy_array(array[0] if kind.images == 1 else array) for array in found]


class Caller(NamedTuple):
    """An engine to time. call: function from images to labels; its next call may overwrite the labels.

    close: frees the memory of a network that this caller alone uses. settings_context: returns a context in which the
    framework's global switches are set for the calls.
    """

    call: Callable[[Any], Any]
    close: Callable[[], object]
    settings_context: Callable[[], AbstractContextManager[object]] = nullcontext


def open_classifier(kind: Kind) -> Caller:
    """Return a ``Caller`` of ``Classifier``. Raises UserError if ``Classifier`` does not support this kind of call."""
    classifier = Classifier(NETWORK, device="cuda", precision=kind.precision, resident=kind.resident)
    return Caller(partial(classifier, on_card=True) if kind.enqueues else classifier, classifier.close)


class TorchCalls(TorchEngine):
    """A network in PyTorch with one setting, for calls with different images.

    pinned: function that allocates page-locked memory, for the images and labels that PyTorch copies.
    """

    def __init__(self, graph: Graph, count: int, precision: str, setting: Setting, pinned: Any, device: str) -> None:
        images, labels = pinned((count, *graph.network.input_shape), np.uint8), pinned((count,), np.uint8)
        super().__init__(graph, images, labels, precision, setting, device)

    def classify_staged(self, images: np.ndarray) -> np.ndarray:
        """Classify images after a copy to page-locked memory; return labels (N,) uint8 in pageable memory."""
        self._host.copy_(self._as_tensor(images))
        self.run()
        return self._host_labels.numpy().copy()

    def classify_direct(self, images: np.ndarray) -> np.ndarray:
        """Classify images that PyTorch copies from pageable memory to the card; return labels (N,) uint8."""
        self._images.copy_(self._as_tensor(images), non_blocking=True)
        self.enqueue()
        return self.download_labels()

    def enqueue_on_card(self, images: Any) -> Any:
        """Start to classify a tensor on the card; return the labels on the card, without waiting for them."""
        if self._captures:  # a CUDA graph reads a fixed address
            self._images.copy_(images.view(self._images.shape))
            self.enqueue()
        else:
            self._labels = self._classify(images.view(self._images.shape))
        return self._labels

    def classify_on_card(self, images: Any) -> np.ndarray:
        """Classify a tensor on the card; return the labels as a NumPy array, (N,) uint8."""
        labels: np.ndarray = self.enqueue_on_card(images).cpu().numpy()
        return labels

    def _as_tensor(self, images: np.ndarray) -> Any:
        return self._torch.from_numpy(images.reshape(self._images.shape))


class TorchPool:
    """Makes and keeps PyTorch networks, each only once, because compiling one takes minutes.

    pinned: function that allocates page-locked memory. quick: whether to leave out some settings of torch.compile.
    """

    def __init__(self, graph: Graph, pinned: Any, device: str = "cuda", quick: bool = False) -> None:
        self._graph, self._pinned, self._device, self._quick = graph, pinned, device, quick
        self._made: dict[tuple[bool, int, str, Setting], TorchCalls] = {}

    def caller_factories(self, kind: Kind, engine: str, precision: str) -> Mapping[str, Callable[[], Caller]]:
        """Return setting → function that makes a ``Caller`` for this kind of call. engine: ``EAGER`` or ``COMPILE``."""
        settings = [
            setting
            for setting in torch.SETTINGS
            if not setting.pieces
            and (setting.mode == torch.EAGER) == (engine == EAGER)
            and not (self._quick and engine == COMPILE and setting.channels_last)
        ]
        ways = (STAGED, DIRECT) if kind.source == ORDINARY else ("",)
        return {
            ", ".join(filter(None, (str(setting), way))): partial(self._make_caller, kind, precision, setting, way)
            for setting in settings
            for way in ways
        }

    def _make_caller(self, kind: Kind, precision: str, setting: Setting, way: str) -> Caller:
        # A function compiled for images at a fixed address would be compiled again for tensors at other addresses.
        key = kind.source == CARD, kind.images, precision, setting
        if key not in self._made:
            self._made[key] = TorchCalls(self._graph, *key[1:], self._pinned, self._device)
        engine = self._made[key]
        if kind.source == CARD:
            call = engine.enqueue_on_card if kind.enqueues else engine.classify_on_card
        else:
            call = engine.classify_staged if way == STAGED else engine.classify_direct
        # Callers share the network, so ``TorchPool.close`` frees it.
        return Caller(call, lambda: None, engine.settings_context)

    def close(self) -> None:
        """Free the memory of all networks that were made."""
        for engine in self._made.values():
            engine.close()
        self._made = {}


def peer_precisions(precision: str) -> list[str]:
    """Return PyTorch's precisions to compare with this program's: the equally accurate one; for fp32 then also tf32."""
    same = BY_NAME[precision].peers
    return [same, "tf32"] if same == "fp32" else [same]
