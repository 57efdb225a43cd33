"""ONNX Runtime, to check an import: it runs the model itself."""

from collections.abc import Callable
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.files.checks import shown
from app.interchange.source import Engine

MAX_BATCH = 1000


def engine(model: Any, logits: str, fed: Callable[[np.ndarray], np.ndarray], batch: int = 0) -> Engine | None:
    """Return the engine, or None where ONNX Runtime is not installed.

    logits: the tensor before a softmax. fed: images (B, C, H, W) uint8 → as the model reads them. batch: the only
    number of images that the model takes, 0 for any; above 1,000 there is no engine.
    """
    if batch > MAX_BATCH:
        return None
    try:
        import onnxruntime
        from onnx import ModelProto, helper
    except ImportError:
        return None
    shown_too = ModelProto()
    shown_too.CopyFrom(model)
    if logits not in {one.name for one in model.graph.output}:
        shown_too.graph.output.append(helper.make_tensor_value_info(logits, 1, None))

    def run(images: np.ndarray) -> np.ndarray:
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                shown_too.SerializeToString(), settings, providers=["CPUExecutionProvider"]
            )
            name = session.get_inputs()[0].name
            size = batch or len(images)
            repeated = np.arange(-(-len(images) // size) * size).reshape(-1, size) % len(images)
            found = [session.run([logits], {name: fed(images[chunk])})[0] for chunk in repeated]
        except Exception as error:  # ONNX Runtime has its own types for each kind of fault
            raise UserError(f"the model does not run in ONNX Runtime: {shown(str(error))}; export it again") from None
        return np.concatenate(found)[: len(images)]

    return Engine(f"ONNX Runtime {onnxruntime.__version__}", run)
