"""The constants of an ONNX graph, and those that follow from them, as the shapes that exporters compute."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from app.files.checks import BadValueError, format_for_error
from app.interchange.onnx_values import Node, array_of

# Operators that keep the number of elements are computed on any constant, the others on small ones only: an array of
# the size of its inputs' product would take all memory.
KEEPING = ("Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
OF_SMALL = ("Add", "Concat", "Div", "Gather", "Mul", "Slice", "Sqrt", "Sub")
SMALL = 64
VALUES = ("value_float", "value_floats", "value_int", "value_ints")


class Constants:
    """The arrays of a graph by name, read when they are asked for. opset: the model's."""

    def __init__(self, graph: Any, opset: int) -> None:
        self._tensors = {one.name: one for one in graph.initializer}
        self._arrays: dict[str, np.ndarray] = {}
        self._opset = opset

    def __contains__(self, name: str) -> bool:
        return name in self._arrays or name in self._tensors

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = array_of(self._tensors[name], name)
        return self._arrays[name]

    def define(self, name: str, array: np.ndarray) -> None:
        """Add a constant."""
        self._arrays[name] = array

    def has_all(self, names: Iterable[str]) -> bool:
        """Return whether all of these are constants."""
        return all(name in self for name in names)

    def fold(self, node: Node) -> None:
        """Compute a node all of whose inputs are constants. Raises BadValueError for operators that are not folded."""
        if node.operator == "Constant":
            self.define(node.outputs[0], _value_of(node))
            return
        arrays = {name: self[name] for name in node.inputs if name}
        small = all(array.size <= SMALL and array.ndim <= 8 for array in arrays.values())
        if not (node.operator in KEEPING or (node.operator in OF_SMALL and small)) or not arrays:
            raise node.fault("computes with constants only", "export it with constant folding")
        self.define(node.outputs[0], self._evaluate(node, arrays))

    def _evaluate(self, node: Node, arrays: dict[str, np.ndarray]) -> np.ndarray:
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        inputs = [helper.make_tensor_value_info(name, 1, None) for name in arrays]
        outputs = [helper.make_tensor_value_info(node.outputs[0], 1, None)]
        model = helper.make_model(
            helper.make_graph([node.proto], "constant", inputs, outputs),
            opset_imports=[helper.make_opsetid("", self._opset)],
        )
        try:
            with np.errstate(all="ignore"):
                (found,) = ReferenceEvaluator(model).run(None, arrays)
            array = np.asarray(found)
        except Exception as error:  # it has no errors of its own
            raise node.fault(
                f"cannot be computed: {format_for_error(str(error).partition(chr(10))[0])}", "export it again"
            ) from None
        if array.dtype.kind not in "biuf":
            raise node.fault("gives no numbers", "export it again")
        return array


def _value_of(node: Node) -> np.ndarray:
    tensor = node.take("value", None)
    found = [tensor, *(node.take(name, None) for name in VALUES)]
    if sum(one is not None for one in found) != 1:
        raise node.fault("has not one value", "export it again")
    node.check_all_taken()
    if tensor is not None:
        return array_of(tensor, node.outputs[0])
    try:
        return np.asarray(next(one for one in found if one is not None))
    except (ValueError, OverflowError) as error:
        raise BadValueError(f"has a damaged constant: {format_for_error(str(error))}; get a fresh copy") from None
