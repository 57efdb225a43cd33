"""Check the arguments of a ``Classifier``: names, and arrays of images."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from app.base.errors import UserError, choices_hint
from app.base.frozen import Frozen
from app.cuda.cards import parse_device_name
from app.files.checks import BadValueError
from app.network.graph import Graph
from app.network.toml import SUFFIX
from app.planning.request import NetworkRequest
from data_tools.dataset import copy_pixels_or_floats

DLPACK_CARDS = (2, 13)  # kDLCUDA, kDLCUDAManaged
FLOATS = [np.dtype(f"f{size}").name for size in (2, 4, 8)]


class BadArgumentError(UserError, ValueError):
    """A wrong argument of a ``Classifier``; also a ValueError, which Python programs expect."""


class ImageBatch(Frozen):
    """Checked images (N, C, H, W), C-contiguous. graph: for their size. single: one image was given, without N."""

    images: Any
    graph: Graph
    single: bool


def is_tensor(images: Any) -> bool:
    """Return whether images are exactly a PyTorch tensor, not of a derived class. Does not import PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and type(images) is torch.Tensor


def is_gpu_array(images: Any) -> bool:
    """Return whether an array reports that it is in a GPU's memory. Does not import CuPy."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(images, cupy.ndarray):
        return True  # a fast path, as the next: the checks below take microseconds
    if is_tensor(images):
        return bool(images.is_cuda)
    device = getattr(images, "__dlpack_device__", None)
    if device is not None:
        with suppress(Exception):  # libraries raise different errors for unsupported arrays
            return device()[0] in DLPACK_CARDS
    return hasattr(images, "__cuda_array_interface__")


def network_request(network_or_weights: str | Path, precision: str) -> NetworkRequest:
    """Return the request for a network's name, a network file (.toml) or a weights file."""
    text = str(network_or_weights)
    is_file = isinstance(network_or_weights, Path) or "/" in text or "." in text
    if is_file and not text.endswith(SUFFIX):
        return NetworkRequest(weights=Path(text), precision=precision)
    return NetworkRequest(network=text, precision=precision)


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise BadArgumentError unless ``value``, the argument called ``name``, is one of ``choices``."""
    if value not in (known := [*choices]):
        raise BadArgumentError(f"{name}={value!r}: {choices_hint(str(value), known)}")


def check_device(device: str) -> None:
    """Raise BadArgumentError unless ``device`` is the name of a device."""
    try:
        parse_device_name(str(device))
    except BadValueError as error:
        raise BadArgumentError(f"device={error}") from None


def validate_host_images(images: Any, graph: Graph) -> ImageBatch:
    """Return images in host memory as a checked batch. Accepts (H, W), (N, H, W), (C, H, W) or (N, C, H, W).

    Pixels are uint8, or floats in [0, 1]. Floats that are all k/255 become uint8, as in files. Raises BadArgumentError.
    """
    try:
        array = np.asarray(images)
    except (TypeError, ValueError, RuntimeError) as error:  # lists of uneven lengths, tensors of types that NumPy lacks
        raise BadArgumentError(f"the images are no array: {' '.join(str(error).split())}") from None
    if array.dtype.kind not in "biufc":  # text, or objects such as paths
        raise BadArgumentError(f"the images are {type(images).__name__}: give an array of pixels")
    batch = reshape_to_batch(array, graph, array.dtype.name)
    if array.dtype == np.uint8:
        return ImageBatch(np.ascontiguousarray(batch.images), batch.graph, batch.single)
    try:
        found = copy_pixels_or_floats(
            batch.images if array.itemsize > 2 else batch.images.astype(np.float32), "the array of images"
        )
    except UserError as error:
        raise BadArgumentError(str(error)) from None
    check_resize_dtype(batch.graph, found.dtype.name)
    return ImageBatch(found, batch.graph, batch.single)


def reshape_to_batch(array: Any, graph: Graph, dtype: str) -> ImageBatch:
    """Return an array of any library as a batch, reshaped to (N, C, H, W).

    dtype: name of its type. Raises BadArgumentError for types other than uint8 and floats, and for shapes that the
    network does not accept.
    """
    if dtype != "uint8" and dtype not in FLOATS:
        raise BadArgumentError(f"the images are {dtype}: give uint8 pixels, or floats in [0, 1]")
    channels = graph.network.input_shape[0]
    shape = tuple(array.shape)
    one = shape if len(shape) == 3 and channels > 1 else (1, *shape) if len(shape) == 2 else None
    whole = shape if len(shape) == 4 else (len(array), 1, *shape[1:]) if len(shape) == 3 else None
    full = (1, *one) if one is not None else whole
    fitting = None if full is None else graph.graph_for_shape(full[1:])
    if full is None or fitting is None:
        sizes = " or ".join(_format_shape(("N", *size)) for size in _accepted_shapes(graph))
        raise BadArgumentError(
            f"the images have the shape {_format_shape(shape)}, network {graph.network.name} reads {sizes}: "
            "give one image, or N of them"
        )
    return ImageBatch(array.reshape(full), fitting, one is not None)


def check_resize_dtype(graph: Graph, dtype: str) -> None:
    """Raise BadArgumentError if the graph resizes images and their type is not uint8."""
    if dtype != "uint8" and graph.steps[0].layer.keeps_bytes:
        raise BadArgumentError(
            f"the images are fractions of pixels, but network {graph.network.name} enlarges whole ones: give uint8"
        )


def _accepted_shapes(graph: Graph) -> list[tuple[int, ...]]:
    """Return the (C, H, W) shapes that the network accepts: before and after its resizing."""
    return [graph.network.input_shape, *(step.out_shape for step in graph.steps[:1] if step.layer.keeps_bytes)]


def _format_shape(shape: Iterable[object]) -> str:
    return f"({', '.join(map(str, shape))})"
