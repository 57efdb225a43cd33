"""Read and write safetensors files with the library ``safetensors``, which checks their headers and offsets."""

from typing import Any

import numpy as np

from app.base.errors import pip_install_command
from app.files.checks import BadValueError, format_for_error, parse_json
from app.interchange.named_arrays import MAX_ARRAYS, NamedArrays, match_to_network, parse_description
from app.interchange.source import ImportOptions, Source
from app.interchange.torch_arrays import COUNTER
from app.network.foreign import DESCRIPTION

FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


def read_source(content: bytes, options: ImportOptions) -> Source:
    """Return a safetensors file's arrays, and the network in ``options``, else the file's own. Raises BadValueError."""
    return match_to_network(read_safetensors(content), options)


def read_safetensors(content: bytes) -> NamedArrays:
    """Return all arrays but batch counters. Raises BadValueError for damage and other types, or without the library."""
    library = _import_safetensors()
    try:
        tensors = library.deserialize(content)
        # The library does not return the metadata. It has checked the JSON header, which begins with its length.
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")].decode("utf-8"))
    except (library.SafetensorError, BadValueError) as error:
        raise BadValueError(f"is no valid safetensors file: {format_for_error(str(error))}; get a fresh copy") from None
    if len(tensors) > MAX_ARRAYS:
        raise BadValueError(f"holds {len(tensors):,} arrays; at most {MAX_ARRAYS:,} are read: store less in it")
    arrays = {name: _to_numpy(name, tensor) for name, tensor in tensors if not name.endswith(COUNTER)}
    metadata = header.get("__metadata__") or {}
    text = metadata.get(DESCRIPTION)
    return NamedArrays(arrays, None if text is None else parse_description(text), metadata)


def build_safetensors_bytes(named: NamedArrays) -> bytes:
    """Return the content of a safetensors file; equal arguments give equal bytes.

    Raises BadValueError without the library. The description is one metadata entry, because the library writes several
    in random order.
    """
    _import_safetensors()
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in named.arrays.items()}
    content: bytes = save(arrays, None if named.description is None else {DESCRIPTION: named.description.json})
    return content


def _to_numpy(name: str, tensor: Any) -> np.ndarray:
    if tensor["dtype"] not in FLOATS:
        kinds = ", ".join(FLOATS)
        raise BadValueError(f"{format_for_error(name)} has type {tensor['dtype']}; store it as one of {kinds}")
    return np.frombuffer(tensor["data"], FLOATS[tensor["dtype"]]).reshape(tensor["shape"])


def _import_safetensors() -> Any:
    try:
        import safetensors
    except ImportError:
        raise BadValueError(f"needs the package safetensors: {pip_install_command('interchange')}") from None
    return safetensors
