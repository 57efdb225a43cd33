"""Build and run a network in PyTorch, tuned for speed, for comparison with the application."""

import gc
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import gt
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.lab.batch import ONE_PIECE, UNWRITTEN, l2_chunk_size
from app.lab.peers.rounds import Engine
from app.lab.peers.torch_network import clone_function, make_classifier
from app.layers import Conv2d
from app.layers.pool import Pool
from app.network.graph import Graph

TORCH = "torch"
PACKAGES = ("torch", "triton", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")  # on which the fastest setting depends
SPARE = 3  # blocks of labels' size to overwrite, one of which PyTorch may allocate for the next labels
CAPTURE_WARMUP = 3
EAGER = "eager"
# Modes of torch.compile that make CUDA graphs themselves. MODES is in order of compile time.
OWN_GRAPHS = ("reduce-overhead", "max-autotune")
MODES = (EAGER, "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
# Reasons why a setting cannot be the fastest. Compiled code stores less between layers than eager mode.
ONE_LAYOUT = "without convolutions and pooling, both layouts are one"
NO_GAIN = "pieces gain nothing in eager mode, so less than nothing compiled"
NEEDLESS = (ONE_PIECE, ONE_LAYOUT, NO_GAIN)


class Setting(Frozen):
    """How PyTorch runs the network: ``eager`` or a mode of torch.compile, and the memory layout of activations.

    pieces: whether the batch runs in pieces that fit the L2 cache. graph: whether it runs as one CUDA graph.
    """

    mode: str = EAGER
    channels_last: bool = False
    pieces: bool = False
    graph: bool = False

    def __str__(self) -> str:
        """Return the setting's name: ``eager, channels last, pieces, CUDA graph``."""
        layout = "channels last" if self.channels_last else "contiguous"
        return f"{self.mode}, {layout}" + ", pieces" * self.pieces + ", CUDA graph" * self.graph


# Each mode in both layouts: without a graph, as one graph, and in pieces. Pieces need a graph, else the card would wait
# for their launches. PyTorch caches compiled code, so settings of one mode and layout compile once.
SETTINGS = tuple(
    Setting(mode, layout, *way)
    for mode in MODES
    for way in ((False, False), (False, True), (True, True))
    for layout in (False, True)
    if mode not in OWN_GRAPHS or not any(way)
)


def reason_to_skip_setting(name: str, ms: Mapping[str, Sequence[float]], graph: Graph) -> str:
    """Return why the setting called ``name`` cannot be the fastest; empty if it can. ms: times of tried settings."""
    setting = next((one for one in SETTINGS if str(one) == name), Setting())
    if setting.channels_last and not any(isinstance(step.layer, Conv2d | Pool) for step in graph.steps):
        return ONE_LAYOUT
    whole, pieces = (ms.get(str(replace(setting, mode=EAGER, pieces=cut, graph=True))) for cut in (False, True))
    if setting.pieces and setting.mode != EAGER and whole and pieces and all(map(gt, pieces, whole)):
        return NO_GAIN
    return ""


def free_compiled_code() -> None:
    """Free the machine code and CUDA graph memory that torch.compile keeps for functions that are no longer used."""
    torch = sys.modules.get("torch")
    if torch is not None:
        if (dynamo := sys.modules.get("torch._dynamo")) is not None:  # else nothing was compiled
            dynamo.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class TorchEngine(Engine):
    """Classifies one batch with PyTorch. device: ``cuda``, or ``cpu`` (without CUDA graphs) for tests.

    precision: ``fp32``; ``tf32``, by the switches of cuDNN and cuBLAS; ``fp16``, weights and activations in half
    precision. Raises UserError for a setting with pieces if there is only one.
    """

    def __init__(
        self,
        graph: Graph,
        images: np.ndarray,
        labels: np.ndarray,
        precision: str,
        setting: Setting = SETTINGS[0],
        device: str = "cuda",
    ) -> None:
        import torch

        self._torch, self._device, self._tf32 = torch, device, precision == "tf32"
        self._host, self._host_labels = torch.from_numpy(images), torch.from_numpy(labels)
        self._images = torch.empty_like(self._host, device=device)  # page-locked or not, as PyTorch sees it
        self._labels: Any = None  # of the last pass
        self._whole_labels: Any = None  # of the last end-to-end graph
        half, self._captures = precision == "fp16", setting.graph and device == "cuda"
        count = len(images)
        l2_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) if device == "cuda" else 0
        self._piece = l2_chunk_size(graph, count, 2 if half else 4, int(l2_bytes)) if setting.pieces else count
        if setting.pieces and self._piece == count:
            raise UserError(ONE_PIECE)
        self.note = f"pieces of {self._piece:,}" if setting.pieces else ""
        self._classify: Any = make_classifier(
            graph, torch, half=half, channels_last=setting.channels_last, device=device
        )
        if setting.mode != EAGER:
            if self._piece == count:
                torch._dynamo.mark_static_address(self._images)  # CUDA graphs then read it in place
            function = clone_function(self._classify)
            self._classify = torch.compile(function, mode=setting.mode, fullgraph=True, dynamic=False)
        self._pass: Any = None  # two graphs: a pass over the images on the card, and a run from host to host
        self._whole: Any = None

    @contextmanager
    def settings_context(self) -> Iterator[None]:
        torch = self._torch
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # newer versions warn of new names for the TF32 switches
            torch.backends.cudnn.benchmark = True
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = self._tf32
            if not self._captures:  # graphs of torch.compile share memory, which another engine may have overwritten
                self._labels = None
            yield

    def upload_images(self) -> None:
        self._images.copy_(self._host)
        self._poison_labels()

    def enqueue(self) -> None:
        if not self._captures:
            self._labels = self._classify_device_images()
        else:
            if self._pass is None:
                self._pass = self._capture_cuda_graph(self._forward)
            self._pass.replay()

    def synchronize(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def download_labels(self) -> np.ndarray:
        copy: np.ndarray = self._labels.cpu().numpy()
        return copy

    def poison_buffers(self) -> None:
        self._images.zero_()
        self._poison_labels()

    def run(self) -> None:
        if not self._captures:
            self._images.copy_(self._host, non_blocking=True)
            self._labels = self._classify_device_images()
            self._host_labels.copy_(self._labels)  # waits
            return
        if self._whole is None:
            self._whole = self._capture_cuda_graph(self._forward_with_copies)
        self._whole.replay()
        self._torch.cuda.current_stream().synchronize()

    def close(self) -> None:
        self._classify = self._images = self._labels = self._whole_labels = self._pass = self._whole = None
        if self._device == "cuda":
            self._torch.cuda.empty_cache()

    def _poison_labels(self) -> None:
        """Fill with ``UNWRITTEN`` the labels on the card and memory that PyTorch may allocate for the next labels."""
        for labels in (self._labels, self._whole_labels):
            if labels is not None:
                labels.fill_(UNWRITTEN)
        spare = [self._torch.full_like(self._host_labels, UNWRITTEN, device=self._device) for _ in range(SPARE)]
        spare.clear()

    def _classify_device_images(self) -> Any:
        """Return the labels of the images on the card, computed piece by piece."""
        if self._piece == len(self._images):
            return self._classify(self._images)
        return self._torch.cat([self._classify(piece) for piece in self._images.split(self._piece)])

    def _forward(self) -> None:
        self._labels = self._classify_device_images()

    def _forward_with_copies(self) -> None:
        self._images.copy_(self._host, non_blocking=True)
        self._whole_labels = self._classify_device_images()
        self._host_labels.copy_(self._whole_labels, non_blocking=True)

    def _capture_cuda_graph(self, action: Callable[[], None]) -> Any:
        """Capture the action as a CUDA graph, after the warm-up runs on a side stream that PyTorch requires."""
        cuda = self._torch.cuda
        aside = cuda.Stream()
        aside.wait_stream(cuda.current_stream())
        with cuda.stream(aside):
            for _ in range(CAPTURE_WARMUP):
                action()
        cuda.current_stream().wait_stream(aside)
        cuda.synchronize()
        # cuBLAS would go on using the workspace of an earlier graph on this stream, which is freed with that graph.
        self._torch._C._cuda_clearCublasWorkspaces()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, capture_error_mode="thread_local"):  # threads of other frameworks keep running
            action()
        return graph
