"""Open a network's engine on a device. GPU engines are imported only when needed: the import loads all kernels."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from app.base.errors import UserError, did_you_mean_hint, pip_install_command
from app.cuda import device as devices
from app.engine.cpu import CpuEngine
from app.engine.interface import CPU_ENGINE, NUMPY, Engine, FeedingOptions
from app.files.checks import format_for_error
from app.network.graph import Graph

if TYPE_CHECKING:
    from app.planning.matching import Choices

ONNX_RUNTIME = "onnxruntime"
REMEDY = pip_install_command("cpu")


def open_engine(
    graph: Graph, choices: Choices | None, *, device: str, dtype: str = "uint8", fed: FeedingOptions | None = None
) -> Engine:
    """Return an engine for images of the graph's input shape and of ``dtype``.

    device: ``cpu``, or ``cuda`` for the current GPU. choices: options for GPU kernels, to which the stored tuning is
    added; None for the defaults. fed: options of an engine into which several threads read blocks (with
    ``Engine.prepare_feeding``); None for an engine that is given arrays. Raises UserError if no kernels can compute the
    network, if memory is short, or if ``$LENET_CPU_ENGINE`` names no usable engine.
    """
    if device == "cpu":
        return cpu_engine_class()(graph, dtype, fed)
    from app.engine.gpu import GpuEngine
    from app.planning import tuning
    from app.planning.matching import Choices
    from app.planning.plan import plan

    card = devices.describe_gpu()
    tuned = replace(choices or Choices(), tuning=tuning.load(card["name"]))
    planned = plan(graph, card["architecture"], tuned, input_dtype=dtype)
    if fed is None:
        return GpuEngine(planned)
    from app.engine.feeding import FedGpuEngine

    return FedGpuEngine(planned, fed)


def cpu_engine_class() -> type[CpuEngine]:
    """Return the CPU engine that ``$LENET_CPU_ENGINE`` names; by default ONNX Runtime's, or NumPy's without it.

    Raises UserError for an unknown name, and for ``onnxruntime`` if it cannot be loaded.
    """
    wanted = os.environ.get(CPU_ENGINE, "")
    if wanted not in ("", NUMPY, ONNX_RUNTIME):
        hint = did_you_mean_hint(wanted, (NUMPY, ONNX_RUNTIME))
        raise UserError(
            f"{CPU_ENGINE} is {format_for_error(wanted)}: set it to {NUMPY} or {ONNX_RUNTIME}, or unset it{hint}"
        )
    if wanted == NUMPY:
        return CpuEngine
    from app.engine.onnx_runtime import OnnxEngine, import_onnx_runtime

    try:
        import_onnx_runtime()
    except ImportError as error:
        if wanted == ONNX_RUNTIME:
            raise UserError(
                f"{CPU_ENGINE}={wanted} needs ONNX Runtime ({format_for_error(str(error))}): {REMEDY}"
            ) from None
        return CpuEngine
    return OnnxEngine
