"""Read constants and attributes of an ONNX graph, and files beside a model that store its numbers, within limits."""

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from app.files.checks import BadValueError, format_for_error
from app.files.reading import may_exist, read_file
from app.interchange.source import MAX_FILE_BYTES

TYPES = (1, 2, 6, 7, 9, 10, 11)  # TensorProto's numbers of float, uint8, int32, int64, bool, float16, double
DOMAINS = ("", "ai.onnx")
TOGETHER = "save the model with its data in one file, or in a file of a plain name in the same folder"
# Operators that keep the number of elements are computed on constants of any size, the others on up to SMALL elements:
# their results can be as large as the product of their inputs' sizes.
KEEPING = ("Cast", "Identity", "Reshape", "Shape", "Squeeze", "Transpose", "Unsqueeze")
OF_SMALL = ("Add", "Concat", "ConstantOfShape", "Div", "Gather", "Mul", "Slice", "Sqrt", "Sub")
SMALL = 64
VALUES = ("value_float", "value_floats", "value_int", "value_ints")


def tensor_array(tensor: Any, name: str) -> np.ndarray:
    """Return the numbers of a TensorProto. Raises BadValueError for external or damaged data and unknown types."""
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


def load_external_data(model: Any, path: Path | None) -> None:
    """Copy the numbers that a model stores in other files into the ModelProto. path: file of the model, or None.

    Raises BadValueError for files outside the model's folder, for links and for the model itself. Also raises it for
    ranges that overlap or leave their file, so that a model takes no more memory than its files. Raises UserError as
    ``read_file`` does.
    """
    ranges: dict[str, list[tuple[int, int, Any]]] = {}
    contents: dict[str, memoryview] = {}
    for tensor in _external_tensors(model.graph):
        about = {one.key: one.value for one in tensor.external_data}
        name, location = format_for_error(tensor.name), about.get("location", "")
        if location not in contents:
            left = MAX_FILE_BYTES - model.ByteSize() - sum(map(len, contents.values()))
            contents[location] = memoryview(_read_external_file(path, name, location, left))
        size = len(contents[location])
        start = _parse_count(name, about.get("offset", "0"))
        length = _parse_count(name, about.get("length", str(max(size - start, 0))))
        if start + length > size:
            shown = format_for_error(location)
            raise BadValueError(f"keeps {name} beyond the end of {shown}, which has {size:,} bytes; get a fresh copy")
        ranges.setdefault(location, []).append((start, start + length, tensor))
    for location, found in ranges.items():
        _copy_ranges_into_tensors(location, contents[location], sorted(found, key=lambda one: one[:2]))


def _external_tensors(graph: Any) -> Iterator[Any]:
    for tensor in (*graph.initializer, *(one.t for node in graph.node for one in node.attribute if one.HasField("t"))):
        if tensor.external_data or tensor.data_location:
            yield tensor


def _read_external_file(path: Path | None, name: str, location: Any, most: int) -> bytes:
    """Return the content of a file beside the model, of at most ``most`` bytes. name: of the array, for errors."""
    shown = format_for_error(location)
    plain = isinstance(location, str) and location.isprintable() and location not in ("", ".", "..")
    if path is None or not plain or "/" in location or "\\" in location:
        raise BadValueError(f"keeps {name} in {shown}, which is no file beside it; {TOGETHER}")
    file = path.with_name(location)
    if file.is_symlink():
        raise BadValueError(f"keeps {name} in {shown}, which is a link; put the file itself there")
    if not may_exist(file):
        raise BadValueError(f"keeps {name} in {shown}, which is not beside it; put both files in one folder")
    if path.exists() and file.samefile(path):
        raise BadValueError(f"keeps {name} in itself as in another file; {TOGETHER}")
    return read_file(file, most)


def _parse_count(name: str, text: Any) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= 15):
        raise BadValueError(f"keeps {name} at {format_for_error(text)}, which is no number of bytes; get a fresh copy")
    return int(text)


def _copy_ranges_into_tensors(location: str, content: memoryview, ranges: list[tuple[int, int, Any]]) -> None:
    """Copy a range of the content into each tensor. ranges: (begin, end, tensor) in bytes, in ascending order."""
    before = 0
    for start, end, tensor in ranges:
        if start < before:
            shown = format_for_error(location)
            raise BadValueError(f"keeps {format_for_error(tensor.name)} where {shown} has another; export it again")
        before = end
        del tensor.external_data[:]
        tensor.data_location = 0
        tensor.raw_data = bytes(content[start:end])


class Node:
    """A node of a graph: its operator, inputs and outputs. Methods remove the attributes that they return."""

    def __init__(self, node: Any) -> None:
        from onnx import helper

        self.operator = node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"
        self.inputs, self.outputs = list(node.input), list(node.output)
        self.name = node.name or next(iter(node.output), "")
        self.proto = node
        try:
            self._attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        except ValueError as error:
            raise self.error(f"has a damaged attribute: {format_for_error(str(error))}", "get a fresh copy") from None

    def error(self, what: str, remedy: str) -> BadValueError:
        """Return an error that names this node. what: what is wrong with it, beginning with a verb."""
        return BadValueError(f"{self.label} {what}; {remedy}")

    @property
    def label(self) -> str:
        """Return the node's name and operator as text."""
        return f"node {format_for_error(self.name)} ({format_for_error(self.operator)[1:-1]})"

    def take_attribute(self, name: str, default: Any) -> Any:
        """Remove and return an attribute, or the default. Raises BadValueError if its type is not that of the default.

        A default of None permits any type. ``check_all_taken`` later refuses attributes that nobody has taken.
        """
        found = self._attributes.pop(name, default)
        if default is None:
            return found
        if isinstance(default, list) and isinstance(found, Iterable) and not isinstance(found, bytes):
            found = list(found)
        if type(found) is not type(default):
            raise self.error(f"has a wrong attribute {name}", "export it again")
        return found

    def take_allowed_attribute(self, name: str, *allowed: Any) -> Any:
        """Take an attribute that must be one of ``allowed``, by default the first. Raises BadValueError otherwise."""
        found = self.take_attribute(name, allowed[0])
        if found not in allowed:
            texts = [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in (found, *allowed)]
            shown, *known = map(format_for_error, texts)
            raise self.error(f"has {name} {shown}", f"only {' or '.join(known)} can be imported")
        return found

    def take_equal_pair(self, name: str, default: int) -> int:
        """Take an attribute, a list of two equal numbers; return the number. Raises BadValueError if they differ."""
        found = self.take_attribute(name, [default] * 2)
        if len(found) != 2 or len(set(found)) != 1:
            raise self.error(f"has {name} {found[:8]}", "only 2 equal numbers can be imported")
        return int(found[0])

    def take_padding(self, sizes: tuple[int, ...], kernel: int, stride: int) -> list[int]:
        """Take ``pads`` or ``auto_pad``; return [top, left, bottom, right] padding of an input of ``sizes`` (H, W)."""
        auto = self.take_allowed_attribute("auto_pad", b"NOTSET", b"VALID", b"SAME_UPPER", b"SAME_LOWER")
        pads: list[int] = self.take_attribute("pads", [0] * 4)
        if auto in (b"NOTSET", b"VALID") or stride < 1:
            return [0] * 4 if auto == b"VALID" else pads
        total = [max(-size % stride + kernel - stride, 0) for size in sizes]
        less, more = [every // 2 for every in total], [every - every // 2 for every in total]
        return [*less, *more] if auto == b"SAME_UPPER" else [*more, *less]

    def check_all_taken(self) -> None:
        """Raise BadValueError if an attribute is left that nobody has taken: the program does not know it."""
        if self._attributes:
            raise self.error(
                f"has the attribute {format_for_error(min(self._attributes))}", "this program does not know it"
            )


class Constants:
    """The constant arrays of a graph by name; each is decoded at its first use. opset: version of the operators."""

    def __init__(self, graph: Any, opset: int) -> None:
        self._tensors = {one.name: one for one in graph.initializer}
        self._arrays: dict[str, np.ndarray] = {}
        self._opset = opset

    def __contains__(self, name: str) -> bool:
        return name in self._arrays or name in self._tensors

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = tensor_array(self._tensors[name], name)
        return self._arrays[name]

    def define_constant(self, name: str, array: np.ndarray) -> None:
        """Add a constant array."""
        self._arrays[name] = array

    def drop_all(self) -> None:
        """Drop all constants, to free their memory."""
        self._tensors, self._arrays = {}, {}

    def has_all(self, names: Iterable[str]) -> bool:
        """Return whether all of these names are constants."""
        return all(name in self for name in names)

    def fold_node(self, node: Node) -> None:
        """Compute a node whose inputs are all constants; its output becomes a constant. Raises BadValueError."""
        if node.operator == "Constant":
            self.define_constant(node.outputs[0], _constant_value(node))
            return
        arrays = {name: self[name] for name in node.inputs if name}
        if node.operator == "ConstantOfShape" and any(
            not 0 <= prod(array.tolist()) <= SMALL for array in arrays.values()
        ):
            raise node.error("makes a large constant", "export it with constant folding")
        small = all(array.size <= SMALL and array.ndim <= 8 for array in arrays.values())
        if not (node.operator in KEEPING or (node.operator in OF_SMALL and small)) or not arrays:
            raise node.error("computes with constants only", "export it with constant folding")
        self.define_constant(node.outputs[0], self._evaluate_node(node, arrays))

    def _evaluate_node(self, node: Node, arrays: dict[str, np.ndarray]) -> np.ndarray:
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        inputs = [helper.make_tensor_value_info(name, 1, None) for name in arrays]
        outputs = [helper.make_tensor_value_info(node.outputs[0], 1, None)]
        graph = helper.make_graph([node.proto], "constant", inputs, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])
        try:
            with np.errstate(all="ignore"):
                (found,) = ReferenceEvaluator(model).run(None, arrays)
            array = np.asarray(found)
        except Exception as error:  # ReferenceEvaluator raises any type
            reason = format_for_error(str(error).partition("\n")[0])
            raise node.error(f"cannot be computed: {reason}", "export it again") from None
        if array.dtype.kind not in "biuf":
            raise node.error("gives no numbers", "export it again")
        return array


def _constant_value(node: Node) -> np.ndarray:
    tensor = node.take_attribute("value", None)
    found = [tensor, *(node.take_attribute(name, None) for name in VALUES)]
    if sum(one is not None for one in found) != 1:
        raise node.error("has not one value", "export it again")
    node.check_all_taken()
    if tensor is not None:
        return tensor_array(tensor, node.outputs[0])
    try:
        return np.asarray(next(one for one in found if one is not None))
    except (ValueError, OverflowError) as error:
        raise BadValueError(f"has a damaged constant: {format_for_error(str(error))}; get a fresh copy") from None
