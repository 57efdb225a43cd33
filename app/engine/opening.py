"""Open the engine of a network on a device. Imports of engines are deferred: they load libraries and all kernels."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from app.base.errors import UserError, install, suggestion
from app.cuda import device as devices
from app.engine.cpu import CpuEngine
from app.engine.interface import CPU_ENGINE, NUMPY, Engine, Feeding
from app.files.checks import shown
from app.network.graph import Graph

if TYPE_CHECKING:
    from app.planning.matching import Choices

ONNX_RUNTIME = "onnxruntime"
REMEDY = install("cpu")


def open_engine(
    graph: Graph, choices: Choices | None, *, device: str, dtype: str = "uint8", fed: Feeding | None = None
) -> Engine:
    """Return an engine for images of the graph's shape and this type.

    device: ``cpu``, or ``cuda`` for the current GPU. choices: of the GPU's kernels, without tuning; None: the usual
    ones. fed: several threads will feed it; None: it takes arrays. Raises UserError for kernels that cannot serve the
    network, where memory is short, and for what ``cpu_engine`` says.
    """
    if device == "cpu":
        return cpu_engine()(graph, dtype, fed)
    from app.engine.gpu import GpuEngine
    from app.planning import tuning
    from app.planning.matching import Choices
    from app.planning.plan import plan

    card = devices.describe_gpu()
    tuned = replace(choices or Choices(), tuning=tuning.load(card["name"]))
    return GpuEngine(plan(graph, card["architecture"], tuned, input_dtype=dtype), fed=fed)


def cpu_engine() -> type[CpuEngine]:
    """Return the engine that ``$LENET_CPU_ENGINE`` names; else ONNX Runtime's, or NumPy's where it is not installed.

    Raises UserError for an unknown engine, and for ``onnxruntime`` where it cannot be loaded.
    """
    wanted = os.environ.get(CPU_ENGINE, "")
    if wanted not in ("", NUMPY, ONNX_RUNTIME):
        hint = suggestion(wanted, (NUMPY, ONNX_RUNTIME))
        raise UserError(f"{CPU_ENGINE} is {shown(wanted)}: set it to {NUMPY} or {ONNX_RUNTIME}, or unset it{hint}")
    if wanted == NUMPY:
        return CpuEngine
    from app.engine.onnx_runtime import OnnxEngine, library

    try:
        library()
    except ImportError as error:
        if wanted == ONNX_RUNTIME:
            raise UserError(f"{CPU_ENGINE}={wanted} needs ONNX Runtime ({shown(str(error))}): {REMEDY}") from None
        return CpuEngine
    return OnnxEngine
