"""Read constants and nodes of an ONNX graph, within limits and never from another file."""

from math import prod
from typing import Any

import numpy as np

from app.files.checks import BadValueError, format_for_error

TYPES = (1, 2, 6, 7, 9, 10, 11)  # of TensorProto: float, uint8, int32, int64, bool, float16, double
DOMAINS = ("", "ai.onnx")


def array_of(tensor: Any, name: str) -> np.ndarray:
    """Return the numbers of a TensorProto. Raises BadValueError for data in other files, other types and damage."""
    from onnx import TensorProto, numpy_helper

    name = format_for_error(name)
    if not isinstance(tensor, TensorProto):
        raise BadValueError(f"has a constant {name} that is not one array of numbers; export it again")
    if tensor.data_location != TensorProto.DEFAULT or tensor.external_data:
        raise BadValueError(f"keeps {name} in another file; save the model with its data in one file")
    if tensor.data_type not in TYPES:
        known = ", ".join(TensorProto.DataType.Name(kind).lower() for kind in TYPES)
        raise BadValueError(f"stores {name} in a type that is none of {known}; store it as float")
    if min(tensor.dims, default=1) < 0 or prod(tensor.dims) > 1 << 31:
        raise BadValueError(f"declares an impossible shape for {name}; get a fresh copy")
    try:
        array: np.ndarray = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise BadValueError(f"has damaged data in {name}: {format_for_error(str(error))}; get a fresh copy") from None
    return array


class Node:
    """One node: its operator, inputs and outputs, and attributes, which its reader takes one by one."""

    def __init__(self, node: Any) -> None:
        from onnx import helper

        self.operator = node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"
        self.inputs, self.outputs = list(node.input), list(node.output)
        self.name = node.name or next(iter(node.output), "")
        self.proto = node
        try:
            self._attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        except ValueError as error:
            raise self.fault(f"has a damaged attribute: {format_for_error(str(error))}", "get a fresh copy") from None

    def fault(self, what: str, remedy: str) -> BadValueError:
        """Return the error that names this node."""
        return BadValueError(f"{self.label} {what}; {remedy}")

    @property
    def label(self) -> str:
        """The node's name and operator."""
        return f"node {format_for_error(self.name)} ({format_for_error(self.operator)[1:-1]})"

    def take(self, name: str, default: Any) -> Any:
        """Pop an attribute or the default, whose type it must have; ``check_all_taken`` refuses what is left."""
        found = self._attributes.pop(name, default)
        if default is None:
            return found
        found = list(found) if isinstance(default, list) and not isinstance(found, int | float | bytes) else found
        if type(found) is not type(default):
            raise self.fault(f"has a wrong attribute {name}", "export it again")
        return found

    def require_attribute(self, name: str, *allowed: Any) -> Any:
        """Return an attribute that must have one of these values; the first is the default. Raises BadValueError."""
        found = self.take(name, allowed[0])
        if found not in allowed:
            known = " or ".join(format_for_error(str(value)) for value in allowed)
            raise self.fault(f"has {name} {format_for_error(str(found))}", f"only {known} can be imported")
        return found

    def uniform_attribute(self, name: str, default: int, count: int = 2) -> int:
        """Return the number that a list attribute repeats ``count`` times. Raises BadValueError if numbers differ."""
        found = self.take(name, [default] * count)
        if len(found) != count or len(set(found)) != 1:
            raise self.fault(f"has {name} {found[:8]}", f"only {count} equal numbers can be imported")
        return int(found[0])

    def padding(self, sizes: tuple[int, ...], kernel: int, stride: int) -> list[int]:
        """Take ``pads`` and ``auto_pad``: rows and columns before an image of these sizes, then behind it."""
        auto = self.require_attribute("auto_pad", b"NOTSET", b"VALID", b"SAME_UPPER", b"SAME_LOWER")
        pads: list[int] = self.take("pads", [0] * 4)
        if auto in (b"NOTSET", b"VALID") or stride < 1:
            return [0] * 4 if auto == b"VALID" else pads
        total = [
            max(-size % stride + kernel - stride, 0) if size % stride else max(kernel - stride, 0) for size in sizes
        ]
        less, more = [every // 2 for every in total], [every - every // 2 for every in total]
        return [*less, *more] if auto == b"SAME_UPPER" else [*more, *less]

    def check_all_taken(self) -> None:
        """Raise BadValueError if an attribute was not taken."""
        if self._attributes:
            raise self.fault(
                f"has the attribute {format_for_error(min(self._attributes))}", "this program does not know it"
            )
