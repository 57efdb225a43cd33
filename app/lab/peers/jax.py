"""Build and run a network in JAX, for comparison with the application."""

import importlib
import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.base.precision import BY_NAME
from app.lab.batch import ONE_PIECE, UNWRITTEN, l2_chunk_size
from app.lab.peers.rounds import Engine, describe_error
from app.layers import Activation, Argmax, Conv2d, Flatten, Layer, LeakyRelu, Linear, Resize, Softmax
from app.layers.pool import Pool
from app.network.graph import Graph

# On an H100 with JAX 0.11, one image reaches the card sooner as an argument of the jitted function (0.28 instead of
# 0.47 ms), 10,000 images by a copy from JAX's page-locked memory (1.4 instead of 2.3 ms).
DIRECT_BYTES = 256 << 10
JAX = "jax"
PACKAGES = ("jax", "jaxlib", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")  # on which the fastest setting depends
SETTINGS = {"jit": False, "jit, pieces": True}  # name → whether it runs in pieces that fit the L2 cache
SPARE = 3  # blocks of labels' size to overwrite, one of which JAX may allocate for the next labels


def why_no_jax() -> str | None:
    """Return why JAX cannot run on the GPU, or None if it can. Also set JAX to allocate memory only as needed."""
    if importlib.util.find_spec("jax") is None:
        return "JAX is not installed"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other engines need device memory, too
    try:
        importlib.import_module("jax").devices("cuda")
    except Exception as error:  # a broken installation fails in many ways
        return "JAX sees no GPU" if isinstance(error, RuntimeError) else f"JAX does not load: {describe_error(error)}"
    return None


class JaxEngine(Engine):
    """Classifies one batch with JAX: a jitted function, which writes new arrays in each call.

    platform: ``cpu`` for tests. in_pieces: run pieces that fit the L2 cache; UserError if there is only one. XLA
    chooses the layouts itself and inserts transposes. The images on the card are an argument of the function; they are
    not donated, because no result has their size.
    """

    def __init__(
        self,
        graph: Graph,
        images: np.ndarray,
        labels: np.ndarray,
        precision: str,
        platform: str = "cuda",
        in_pieces: bool = False,
    ) -> None:
        import jax

        device = jax.devices(platform)[0]
        count = len(images)
        piece = l2_chunk_size(graph, count, 2 if precision == "fp16" else 4) if in_pieces else count
        if in_pieces and piece == count:
            raise UserError(ONE_PIECE)
        self.note = f"pieces of {piece:,}" if in_pieces else ""
        self._jax, self._host_labels = jax, labels
        self._on_card = jax.sharding.SingleDeviceSharding(device)
        in_pinned = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
        self._host = jax.device_put(images, in_pinned)
        self._few = images if images.nbytes < DIRECT_BYTES else None
        self._precision = BY_NAME[precision].jax
        dtype = np.float16 if precision == "fp16" else np.float32
        arrays = {name: array.astype(dtype) for name, array in graph.parameters.items()}
        self._parameters = jax.device_put(arrays, self._on_card)
        classify = make_classifier(jax, dtype, graph)
        self._classify = jax.jit(_make_chunked_classifier(jax, classify, piece) if in_pieces else classify)
        self._images: Any = None
        self._labels: Any = None

    def settings_context(self) -> AbstractContextManager[object]:
        # JAX keeps a compiled function for each precision of float32 products.
        context: AbstractContextManager[object] = self._jax.default_matmul_precision(self._precision)
        return context

    def upload_images(self) -> None:
        self._images = self._jax.device_put(self._host, self._on_card)
        self._poison_labels()

    def enqueue(self) -> None:
        self._labels = self._classify(self._parameters, self._images)

    def synchronize(self) -> None:
        # JAX waits for arrays, not for a device. The device finishes these arrays last.
        self._jax.block_until_ready((self._images, self._labels))

    def download_labels(self) -> np.ndarray:
        return np.asarray(self._labels)

    def poison_buffers(self) -> None:
        self._images = None
        self._poison_labels()

    def run(self) -> None:
        images = self._few if self._few is not None else self._jax.device_put(self._host, self._on_card)
        self._host_labels[:] = np.asarray(self._classify(self._parameters, images))

    def _poison_labels(self) -> None:
        """Free the last labels' memory, and fill what JAX may allocate for the next labels with ``UNWRITTEN``."""
        self._labels = None
        unwritten = np.full_like(self._host_labels, UNWRITTEN)
        self._jax.block_until_ready([self._jax.device_put(unwritten, self._on_card) for _ in range(SPARE)])

    def close(self) -> None:
        self._images = self._labels = self._host = self._parameters = self._classify = None


def make_classifier(jax: Any, dtype: type, graph: Graph) -> Callable[[Any, Any], Any]:
    """Return a function from parameters and images (N, C, H, W) uint8 to labels (N,) uint8.

    Activations are N, H, W, C to suit the weights file, whose filters are H, W, in, out.
    """
    jnp = jax.numpy
    layers = [step.layer for step in graph.steps]

    def classify(parameters: Any, images: Any) -> Any:
        x = images.transpose(0, 2, 3, 1)
        for at, layer in enumerate(layers):
            if at == graph.pixel_scale_step:
                x = x.astype(dtype) * dtype(graph.input_scale)
            x = _apply_layer(jax, layer, parameters, x)
        return x.astype(jnp.uint8)

    return classify


def _make_chunked_classifier(jax: Any, classify: Callable[[Any, Any], Any], piece: int) -> Callable[[Any, Any], Any]:
    """Return a function that runs ``classify`` on ``piece`` images at a time, in one loop on the card."""

    def classify_in_chunks(parameters: Any, images: Any) -> Any:
        pieces = images.reshape(-1, piece, *images.shape[1:])
        return jax.lax.map(lambda part: classify(parameters, part), pieces).reshape(-1)

    return classify_in_chunks


def _apply_layer(jax: Any, layer: Layer, parameters: Any, x: Any) -> Any:
    """Return layer(x); x is (N, H, W, C) or (N, C). Raises UserError for a kind of layer without a JAX form here."""
    jnp, lax = jax.numpy, jax.lax
    activations = {"relu": jax.nn.relu, "relu6": jax.nn.relu6, "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid}
    match layer:
        case Resize() if layer.rule == "course":  # exact in integers: float rounding would move whole values
            x = x.astype(np.int32)
            for axis in (1, 2):
                low, high, near, far = layer.neighbours(x.shape[axis])
                near, far = (weights.reshape(-1, *(1,) * (3 - axis)) for weights in (near, far))
                x = jnp.take(x, low, axis) * near + jnp.take(x, high, axis) * far
            return x // layer.divisor
        case Resize():  # JAX's own interpolation, rounded to whole values; halves may go the other way
            shape = (len(x), layer.size, layer.size, x.shape[3])
            return jnp.floor(jax.image.resize(x.astype(np.float32), shape, "bilinear", antialias=False) + 0.5)
        case Conv2d():
            step, zeros = (layer.stride, layer.stride), [(layer.padding, layer.padding)] * 2
            layouts = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(x, parameters[layer.name], step, zeros, dimension_numbers=layouts)
        case Linear():
            x = x @ parameters[layer.name]
        case Pool():
            window, strides = (1, layer.window, layer.window, 1), (1, layer.effective_stride, layer.effective_stride, 1)
            shape = x.shape[3], *x.shape[1:3]
            margins = ((0, 0), *layer.window_overhangs(shape), (0, 0))
            if layer.is_max:
                return lax.reduce_window(x, x.dtype.type(-np.inf), lax.max, window, strides, margins)
            sums = lax.reduce_window(x, x.dtype.type(0), lax.add, window, strides, margins)
            return sums / layer.window_pixel_counts(shape)[:, :, None].astype(x.dtype)
        case Activation() if layer.kind in activations:
            return activations[layer.kind](x)
        case LeakyRelu():
            return jax.nn.leaky_relu(x, layer.slope)
        case Flatten():
            return x.reshape(len(x), -1)
        case Softmax():
            return jax.nn.softmax(x, axis=1)
        case Argmax():
            return jnp.argmax(x, axis=1)
        case _:
            raise UserError(f"layer {layer.name} ({layer.kind}) cannot be built in JAX here")
    bias = parameters.get(f"{layer.name}_bias")
    return x if bias is None else x + bias
