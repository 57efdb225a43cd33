"""Run a network on the CPU by ONNX Runtime, from the ONNX model that ``export`` writes."""

from typing import Any

import numpy as np

from app.base.clock import Timer
from app.base.errors import UserError
from app.engine.cpu import CpuEngine, TimedPart
from app.engine.interface import CPU_ENGINE, NUMPY, FeedingOptions
from app.files.checks import format_for_error
from app.interchange.named_arrays import Description
from app.interchange.onnx_export import IMAGES, LABELS, SCORES, onnx_model
from app.network.graph import Graph

WHOLE = "whole graph"


def import_onnx_runtime() -> Any:
    """Return the module of ONNX Runtime. Raises ImportError if it, or ``onnx``, which builds models, is missing."""
    import onnx  # noqa: F401
    import onnxruntime

    return onnxruntime


class OnnxEngine(CpuEngine):
    """Run a graph on the CPU by ONNX Runtime, in float32. Raises ImportError without it, UserError if it refuses.

    Every thread runs whole chunks through the same model. ONNX Runtime fuses layers, so only the whole graph is timed.
    """

    library = "ONNX Runtime"

    def __init__(self, graph: Graph, dtype: str = "uint8", fed: FeedingOptions | None = None) -> None:
        super().__init__(graph, dtype, fed)
        self._library = import_onnx_runtime()
        self.software = {"onnxruntime": self._library.__version__}
        self._models: dict[str, Any] = {}
        self._session_for(dtype)

    @property
    def timed_parts(self) -> tuple[TimedPart, ...]:
        """Return the whole graph as one part: bytes of images and labels, and the FLOPs of all layers."""
        flops = sum(step.layer.flops(step.in_shape) for step in self.graph.steps)
        return (TimedPart(WHOLE, flops, int(np.prod(self.graph.network.input_shape)) + 1),)

    def compute_chunk(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
        """Return scores (B, classes), labels (B,) and the graph's seconds for one chunk of images (B, C, H, W)."""
        if images.dtype != np.uint8:
            images = images.astype(np.float32, copy=False)
        model = self._session_for(images.dtype.name)
        timer = Timer()
        scores, labels = model.run([SCORES, LABELS], {IMAGES: np.ascontiguousarray(images)})
        return scores, labels, {WHOLE: timer.seconds}

    def _session_for(self, dtype: str) -> Any:
        """Return the ONNX Runtime session for images of this type; create it at the first call."""
        with self._lock:
            if dtype not in self._models:
                scale = self.graph.pixel_scale(np.dtype(dtype))
                model = onnx_model(Description(self.graph.network, scale, None), self.graph.parameters, dtype)
                settings = self._library.SessionOptions()
                settings.intra_op_num_threads = settings.inter_op_num_threads = 1  # threads run chunks in parallel
                settings.log_severity_level = 4
                try:
                    self._models[dtype] = self._library.InferenceSession(
                        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
                    )
                except MemoryError:
                    raise
                except Exception as error:  # ONNX Runtime has a separate type for each kind of fault
                    fault = (
                        f"ONNX Runtime does not run network {self.graph.network.name} ({format_for_error(str(error))})"
                    )
                    raise UserError(f"{fault}: compute by NumPy, with {CPU_ENGINE}={NUMPY}") from None
            return self._models[dtype]
