"""Read the numbers that an ONNX model keeps in a file beside it, as PyTorch's exporter writes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.files.checks import BadValueError, format_for_error
from app.files.reading import may_exist, read_file
from app.network.weights import MAX_BYTES

TOGETHER = "save the model with its data in one file, or in a file of a plain name in the same folder"


def load_external_data(model: Any, path: Path | None) -> None:
    """Move such numbers into the model. path: the model's file, None for a model that comes from no file.

    Raises BadValueError for files outside its folder, links and the model itself, and for ranges that leave their file
    or overlap: every byte is used once, so that no model takes more memory than its files. UserError as ``read_file``.
    """
    ranges: dict[str, list[tuple[int, int, Any]]] = {}
    contents: dict[str, memoryview] = {}
    for tensor in _external_tensors(model.graph):
        about = {one.key: one.value for one in tensor.external_data}
        name, location = format_for_error(tensor.name), about.get("location", "")
        if location not in contents:
            contents[location] = memoryview(_read_beside(path, name, location))
        size = len(contents[location])
        start = _parse_count(name, about.get("offset", "0"))
        length = _parse_count(name, about.get("length", str(max(size - start, 0))))
        if start + length > size:
            shown = format_for_error(location)
            raise BadValueError(f"keeps {name} beyond the end of {shown}, which has {size:,} bytes; get a fresh copy")
        ranges.setdefault(location, []).append((start, start + length, tensor))
    for location, found in ranges.items():
        _fill(location, contents[location], sorted(found, key=lambda one: one[:2]))


def _external_tensors(graph: Any) -> Iterator[Any]:
    for tensor in (*graph.initializer, *(one.t for node in graph.node for one in node.attribute if one.HasField("t"))):
        if tensor.external_data or tensor.data_location:
            yield tensor


def _read_beside(path: Path | None, name: str, location: Any) -> bytes:
    """Read the whole file of this name beside the model. name: of the array, for errors."""
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
    return read_file(file, MAX_BYTES)


def _parse_count(name: str, text: Any) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= 15):
        raise BadValueError(f"keeps {name} at {format_for_error(text)}, which is no number of bytes; get a fresh copy")
    return int(text)


def _fill(location: str, content: memoryview, ranges: list[tuple[int, int, Any]]) -> None:
    """Give each tensor its range of the content. ranges: begin, end and tensor, in order."""
    before = 0
    for start, end, tensor in ranges:
        if start < before:
            shown = format_for_error(location)
            raise BadValueError(f"keeps {format_for_error(tensor.name)} where {shown} has another; export it again")
        before = end
        del tensor.external_data[:]
        tensor.data_location = 0
        tensor.raw_data = bytes(content[start:end])
