"""LeNet-5 in PyTorch, as one would write it there for speed: a peer to compare with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np

from app.bench import library
from app.bench.batch import UNWRITTEN
from app.errors import UserError
from app.graph import Graph
from app.layers.flatten import channel_first_rows


class TorchEngine:
    """PyTorch on one batch. mode: of torch.compile, None for eager; device: ``cpu`` for tests.

    precision: ``fp32``; ``tf32``, by the switches of cuDNN and cuBLAS; ``fp16``, weights and activations in half
    precision, channels last.
    """

    arithmetic: str | None = None

    def __init__(
        self,
        graph: Graph,
        images: np.ndarray,
        labels: np.ndarray,
        precision: str,
        mode: str | None,
        device: str = "cuda",
    ) -> None:
        missing = library.missing() if device == "cuda" else None
        if missing is not None:
            raise UserError(missing)
        import torch

        self.note = "channels last" if precision == "fp16" else ""
        self._torch, self._device, self._tf32 = torch, device, precision == "tf32"
        self._host, self._host_labels = torch.from_numpy(images), torch.from_numpy(labels)
        self._images = torch.empty_like(self._host, device=device)  # page-locked or not, as PyTorch sees it
        self._labels: Any = None
        self._classify: Any = classifier(graph, torch, half=precision == "fp16", device=device)
        if mode is not None:
            torch._dynamo.mark_static_address(self._images)  # CUDA graphs then read it in place
            self._classify = torch.compile(own_code(self._classify), mode=mode, fullgraph=True, dynamic=False)

    @contextmanager
    def active(self) -> Iterator[None]:
        """PyTorch's global switches; inference mode."""
        torch = self._torch
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # newer versions announce another name of the TF32 switches
            torch.backends.cudnn.benchmark = True
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = self._tf32
            yield

    def load(self) -> None:
        """The last labels are overwritten: graphs use their memory again."""
        self._images.copy_(self._host)
        if self._labels is not None:
            self._labels.fill_(UNWRITTEN)

    def enqueue(self) -> None:
        """One forward pass."""
        self._labels = self._classify(self._images)

    def synchronize(self) -> None:
        """The whole device."""
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def card_labels(self) -> np.ndarray:
        """A copy on the host."""
        copy: np.ndarray = self._labels.cpu().numpy()
        return copy

    def wipe(self) -> None:
        """Black images."""
        self._images.zero_()

    def run(self) -> None:
        """Copy in without waiting, classify, copy out; the last copy waits."""
        self._images.copy_(self._host, non_blocking=True)
        self._labels = self._classify(self._images)
        self._host_labels.copy_(self._labels)

    def close(self) -> None:
        """What this engine alone held goes back to the device."""
        self._classify = self._images = self._labels = None
        if self._device == "cuda":
            self._torch.cuda.empty_cache()


def classifier(graph: Graph, torch: Any, *, half: bool, device: str) -> Callable[[Any], Any]:
    """A function from images (N, 1, 28, 28) uint8 to labels (N,) uint8."""
    nn = torch.nn
    dtype = torch.float16 if half else torch.float32
    layout = torch.channels_last if half else torch.contiguous_format
    scale = graph.input_scale

    def weights(name: str) -> Any:
        """H, W, in, out → out, in, H, W; in, out → out, in."""
        array = graph.parameters[name]
        if name == "fc1" and not half:  # features arrive in C, H, W order
            array = array[channel_first_rows(flattened)]
        order = (3, 2, 0, 1) if array.ndim == 4 else (1, 0)
        tensor = torch.from_numpy(np.ascontiguousarray(array.transpose(order))).to(device, dtype)
        return nn.Parameter(
            tensor.to(memory_format=layout) if array.ndim == 4 else tensor,
            requires_grad=False,
        )

    def layer(kind: Any, name: str, *sizes: int) -> Any:
        """A layer without bias that holds the weights of that name."""
        made = kind(*sizes, bias=False, device="meta")
        made.weight = weights(name)
        return made

    flattened = next(step.in_shape for step in graph.steps if step.layer.kind == "flatten")
    features = nn.Sequential(
        *(layer(nn.Conv2d, "conv1", 1, 32, 5), nn.ReLU(), nn.AvgPool2d(2)),
        *(layer(nn.Conv2d, "conv2", 32, 64, 5), nn.ReLU(), nn.AvgPool2d(2)),
    )
    head = nn.Sequential(layer(nn.Linear, "fc1", 1024, 128), nn.ReLU(), layer(nn.Linear, "fc2", 128, 10))

    def classify(images: Any) -> Any:
        x = features(images.to(dtype, memory_format=layout) * scale)
        x = x.permute(0, 2, 3, 1) if half else x
        return head(x.flatten(1)).argmax(1).to(torch.uint8)

    return classify


def own_code(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function with a code object of its own: torch.compile looks compiled versions up by that, one after another,
    so that those of other modes and precisions would slow down every call."""
    assert isinstance(function, FunctionType)
    return FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, closure=function.__closure__
    )
