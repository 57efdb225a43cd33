"""Every format that ``import`` reads, and the choice of the reader by the content, else by the file's ending."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.errors import UserError
from app.files.checks import BadValueError
from app.files.formats import START_BYTES, recognise
from app.files.reading import read_file
from app.interchange.mxnet_params import MAGIC
from app.interchange.numbers import check_numbers
from app.interchange.source import Asked, Source
from app.network.weights import MAX_BYTES


@dataclass(frozen=True)
class Format:
    """A format of foreign files. module: of app/interchange, with ``read(content, asked)``; imported when needed.

    begins: whether content that starts with these bytes is surely of this format. ending: of the names of such files.
    """

    name: str
    module: str
    ending: str
    begins: Callable[[bytes], bool] = lambda start: False


def _recognised(kind: str) -> Callable[[bytes], bool]:
    return lambda start: recognise(start) == kind


FORMATS = (
    Format("mini-dnn flat dump", "minidnn", ".bin"),
    Format("safetensors", "safetensors_file", ".safetensors", _recognised("a safetensors file")),
    Format("NumPy archive", "npz", ".npz", _recognised("a NumPy archive (.npz)")),
    Format("ONNX model", "onnx_import", ".onnx", _recognised("an ONNX model")),
    Format("PyTorch state dict", "state_dict", ".pt", _recognised("a PyTorch file (.pt, .pth)")),
    Format("MXNet arrays", "mxnet", ".params", lambda start: start.startswith(MAGIC.to_bytes(8, "little") + bytes(8))),
)


def read(path: Path, asked: Asked) -> tuple[str, Source]:
    """Read the file: the name of its format, and its content. Raises UserError for every fault."""
    content = read_file(path, MAX_BYTES)
    found = _format(path, content[:START_BYTES])
    try:
        source: Source = importlib.import_module(f"{__package__}.{found.module}").read(content, asked)
        check_numbers(source.arrays)
    except BadValueError as error:
        raise UserError(f"{path}: {error}") from error
    return found.name, source


def _format(path: Path, start: bytes) -> Format:
    by_content = (row for row in FORMATS if row.begins(start))
    by_name = (row for row in FORMATS if path.name.lower().endswith(row.ending))
    found = next(by_content, None) or next(by_name, None)
    kind = recognise(start)
    if found is None or (kind is not None and not found.begins(start)):
        known = ", ".join(f"{row.name} ({row.ending})" for row in FORMATS)
        raise UserError(f"{path} is {kind or 'of an unknown format'}; import reads {known}")
    return found
