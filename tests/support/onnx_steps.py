"""Build ONNX models of a few steps, as exporters write them, and import them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.interchange.source import Source
from tests.support import foreign_files

onnx = pytest.importorskip("onnx")
Step = tuple[Any, ...]  # operator, constants behind the activation, attributes
SHAPE = (3, 8, 8)
RNG = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def conv(channels: int = 3, maps: int = 4, kernel: int = 3, **attributes: Any) -> Step:
    return "Conv", [floats(maps, channels, kernel, kernel) / 3, floats(maps)], attributes


def gemm(features: int, outputs: int = 5) -> Step:
    return "Gemm", [floats(features, outputs) / 8, floats(outputs)], {}


def norm(maps: int, positive: bool = False) -> Step:
    scale = np.abs(floats(maps)) if positive else floats(maps)
    return "BatchNormalization", [scale, floats(maps), floats(maps), np.abs(floats(maps))], {"epsilon": 1e-3}


RELU: Step = ("Relu",)
FLAT: Step = ("Flatten",)
POOL: Step = ("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2]})
SUB: Step = ("Sub", [np.float32(0.3)], {})
DIV: Step = ("Div", [np.float32(0.25)], {})
MEAN: Step = ("AveragePool", [], {"kernel_shape": [2, 2], "strides": [2, 2]})
SIZES: list[Step] = [  # the shape as exporters compute it: (N, and all that is left)
    ("Shape", ["@"], {"to_name": "shape"}),
    ("Gather", ["shape", np.array(0)], {"to_name": "count"}),
    ("Unsqueeze", ["count", whole(0)], {"to_name": "counts"}),
    ("Concat", ["counts", whole(-1)], {"to_name": "sizes", "axis": 0}),
    ("Reshape", ["@", "sizes"], {}),
]
BYTES = "uint8"


def model_of(steps: Sequence[Step], *, shape: tuple[int, ...] = SHAPE, opset: int = 18, pixels: str = "float32") -> Any:
    """Return a model with a chain of these steps; an input ``@x`` is the output that another step named ``x``."""
    helper = onnx.helper
    nodes, constants, at = [], [], "images"
    for number, step in enumerate(steps):
        operator, given, attributes = (*step, [], {})[:3] if len(step) == 1 else step
        names = []
        for place, value in enumerate(given):
            names.append(value if isinstance(value, str) else f"c{number}_{place}")
            if not isinstance(value, str):
                constants.append(onnx.numpy_helper.from_array(np.asarray(value), names[-1]))
        whole_list = "@" in names or "to_name" in attributes
        inputs = [at if name == "@" else name for name in names] if whole_list else [at, *names]
        name = attributes.get("to_name", f"x{number}")
        rest = {key: value for key, value in attributes.items() if key != "to_name"}
        nodes.append(helper.make_node(operator, inputs, [name], name=f"n{number}", **rest))
        at = at if "to_name" in attributes else name
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(pixels))
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("images", kind, ["n", *shape])],
        [helper.make_tensor_value_info(at, 1, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def imported(model: Any) -> Source:
    """Return the imported source, after checking that its network gives ONNX Runtime's logits."""
    Path("m.onnx").write_bytes(model.SerializeToString())
    source, _ = foreign_files.imported(Path("m.onnx"))
    assert source.engine is not None
    return source
