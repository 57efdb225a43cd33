"""Time cuDNN's convolutions through PyTorch for comparison, if PyTorch is installed."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from app.base.precision import BY_DTYPE
from app.kernels.problems import ConvProblem
from app.lab.bench.results import LIBRARY, Result

if TYPE_CHECKING:  # needs CuPy
    from app.lab.timer import Clock
    from app.main_job.result import Timing


def why_no_cudnn() -> str | None:
    """Return why cuDNN cannot be timed, or None if it can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    try:
        torch = importlib.import_module("torch")
        return None if torch.cuda.is_available() else "PyTorch sees no GPU"
    except Exception as error:  # a broken installation fails in many ways
        return f"PyTorch does not load: {' '.join(str(error).split())}"


def make_cudnn_result(problem: ConvProblem, **figures: Any) -> Result:
    """Return cuDNN's row for the problem. figures: fields of ``Result``, such as the time or a reason."""
    return Result(LIBRARY, BY_DTYPE[problem.dtype].cudnn, problem.dtype, **figures)


def time_cudnn(problem: ConvProblem, images: int, clock: Clock, noise: float, l2: str) -> Result:
    """Return the time of a convolution with bias by cuDNN's fastest algorithm. Its input has the arithmetic type.

    Both memory layouts are tried, with the whole batch and with pieces that fit the L2 cache; the row's note names the
    fastest. The row has a reason if memory is short. noise: relative error at which to stop. l2: ``cold`` or ``warm``.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions warn of a new name for the TF32 switch
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = problem.dtype == "tfloat32"
    stream = torch.cuda.ExternalStream(clock.stream.ptr)
    numbers = problem.channels * problem.height * problem.width + problem.maps * prod(problem.conv_output_size)
    nbytes = numbers * (2 if problem.dtype == "float16" else 4)  # input and output of one image
    cached = min(max(clock.l2_bytes // nbytes, 1), images)
    found: dict[str, Timing] = {}
    try:
        with torch.inference_mode(), torch.cuda.stream(stream):
            for layout in ("contiguous", "channels last"):
                for piece in dict.fromkeys((images, cached)):
                    call = _convolution_call(torch, problem, images, piece, layout == "channels last")
                    name = layout if piece == images else f"{layout}, pieces of {piece:,}"
                    found[name] = clock.time_enqueued_work(call, noise, l2, actions=4 * -(-images // piece))
        best = min(found, key=lambda name: found[name].median)
        note = f"{best}; {problem.input_dtype} input as float" if problem.input_dtype == "uint8" else best
        return make_cudnn_result(problem, **found[best].json_row, note=note)
    except torch.cuda.OutOfMemoryError:
        return make_cudnn_result(problem, reason="PyTorch finds too little free device memory")
    finally:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _convolution_call(
    torch: Any, problem: ConvProblem, images: int, piece: int, channels_last: bool
) -> Callable[[], None]:
    kind = torch.float16 if problem.dtype == "float16" else torch.float32
    layout = torch.channels_last if channels_last else torch.contiguous_format
    random = partial(torch.randn, dtype=kind, device="cuda")
    x = random((images, problem.channels, problem.height, problem.width)).to(memory_format=layout)
    filters = (problem.maps, problem.channels, problem.kernel, problem.kernel)
    w = random(filters).to(memory_format=layout) / np.sqrt(problem.reduction_length)
    bias = random(problem.maps) if problem.bias else None
    convolve = torch.nn.functional.conv2d
    pieces = x.split(piece)

    def call() -> None:
        for part in pieces:  # PyTorch's pool provides and takes back the result's memory
            convolve(part, w, bias, problem.stride, problem.padding)

    return call
