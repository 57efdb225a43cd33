"""cuDNN's times of a convolution, through PyTorch where that can be imported: rows to compare with, nothing more."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from app.bench.results import LIBRARY, Result
from app.kernels.problems import ConvProblem

if TYPE_CHECKING:  # needs CuPy
    from app.bench.clock import Clock

# Arithmetic type → what PyTorch is told.
ROWS = {"float32": "cuDNN, TF32 off", "tfloat32": "cuDNN, TF32 on", "float16": "cuDNN, channels-last"}


def missing() -> str | None:
    """Why there are no cuDNN rows, or None."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    try:
        torch = importlib.import_module("torch")
        return None if torch.cuda.is_available() else "PyTorch sees no GPU"
    except Exception as error:  # a broken installation fails in many ways
        return f"PyTorch does not load: {' '.join(str(error).split())}"


def cudnn_row(problem: ConvProblem, dtype: str, images: int, clock: Clock, noise: float, l2: str) -> Result:
    """The convolution and its bias alone, by the algorithm that cuDNN finds fastest; input in the arithmetic's type."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions announce another name of the TF32 switch
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = dtype == "tfloat32"
    note = f"{problem.input_dtype} input as float" if problem.input_dtype == "uint8" else ""
    stream = torch.cuda.ExternalStream(clock.stream.ptr)
    try:
        with torch.inference_mode(), torch.cuda.stream(stream):
            timing = clock.time(_call(torch, problem, dtype, images), noise, l2, actions=4)
        return Result(
            *(LIBRARY, ROWS[dtype], dtype),
            ms=timing.median,
            spread_ms=timing.spread,
            runs=len(timing.samples),
            note=note,
        )
    except torch.cuda.OutOfMemoryError:
        return Result(LIBRARY, ROWS[dtype], dtype, reason="PyTorch finds too little free device memory")
    finally:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _call(torch: Any, problem: ConvProblem, dtype: str, images: int) -> Callable[[], None]:
    half = dtype == "float16"
    kind = torch.float16 if half else torch.float32
    layout = torch.channels_last if half else torch.contiguous_format
    shape = (images, problem.channels, problem.height, problem.width)
    x = torch.randn(shape, dtype=kind, device="cuda").to(memory_format=layout)
    filters = (problem.maps, problem.channels, problem.kernel, problem.kernel)
    w = torch.randn(filters, dtype=kind, device="cuda").to(memory_format=layout) / np.sqrt(problem.depth)
    bias = torch.randn(problem.maps, dtype=kind, device="cuda") if problem.bias else None
    convolve = torch.nn.functional.conv2d

    def call() -> None:
        convolve(x, w, bias, stride=problem.stride)  # the result's memory comes from PyTorch's pool and goes back

    return call
