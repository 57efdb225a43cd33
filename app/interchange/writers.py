"""Every format that ``export`` writes, by the file's ending."""

from collections.abc import Callable, Mapping

import numpy as np

from app.interchange.layout import to_channels_first
from app.interchange.named_arrays import BIAS, WEIGHT, Description, NamedArrays
from app.interchange.npz import npz_content
from app.interchange.onnx_export import onnx_model
from app.interchange.safetensors_file import safetensors_content

Arrays = Mapping[str, np.ndarray]


def _onnx(description: Description, arrays: Arrays) -> bytes:
    content: bytes = onnx_model(description, arrays).SerializeToString(deterministic=True)
    return content


def _safetensors(description: Description, arrays: Arrays) -> bytes:
    """PyTorch's names and layouts: ``load_state_dict`` takes the arrays as they are."""
    theirs = to_channels_first(description.network, arrays).items()
    return safetensors_content(NamedArrays({torch_name(name): array for name, array in theirs}, description))


def _npz(description: Description, arrays: Arrays) -> bytes:
    """The names and layouts of weights files."""
    return npz_content(NamedArrays(arrays, description))


# Ending → writer: the description and the arrays of a weights file → the content. Raises BadValueError.
WRITERS: dict[str, Callable[[Description, Arrays], bytes]] = {
    ".onnx": _onnx,
    ".safetensors": _safetensors,
    ".npz": _npz,
}


def written_name(ending: str, name: str) -> str:
    """Return what a file with this ending calls one of our arrays."""
    return name if ending == ".npz" else torch_name(name)


def torch_name(name: str) -> str:
    """``conv1`` → ``conv1.weight``, ``conv1_bias`` → ``conv1.bias``."""
    layer = name.removesuffix("_bias")
    return f"{layer}.{WEIGHT if layer == name else BIAS}"
