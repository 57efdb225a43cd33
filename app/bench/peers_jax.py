"""LeNet-5 in JAX: a peer to compare with."""

from __future__ import annotations

import importlib.util
import os
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from app.errors import UserError
from app.graph import Graph

# Images of fewer bytes reach the card sooner as an argument of the jitted function (0.28 ms instead of 0.47 for one
# image), of more by a copy from JAX's page-locked memory (1.4 ms instead of 2.3 for 10,000 images); H100, JAX 0.11.
DIRECT_BYTES = 256 << 10
# Our name → JAX's name of what float32 may be multiplied in.
PRECISIONS = {"fp32": "float32", "tf32": "tensorfloat32", "fp16": "default"}


class JaxEngine:
    """A jitted function on one batch; arrays are never written twice. platform: ``cpu`` for tests."""

    arithmetic: str | None = None

    def __init__(
        self, graph: Graph, images: np.ndarray, labels: np.ndarray, precision: str, platform: str = "cuda"
    ) -> None:
        if importlib.util.find_spec("jax") is None:
            raise UserError("JAX is not installed")
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others need device memory, too
        import jax

        try:
            device = jax.devices(platform)[0]
        except RuntimeError:
            raise UserError("JAX sees no GPU") from None
        self.note = ""
        self._jax, self._host_labels = jax, labels
        self._on_card = jax.sharding.SingleDeviceSharding(device)
        in_pinned = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
        self._host = jax.device_put(images, in_pinned)
        self._few = images if images.nbytes < DIRECT_BYTES else None
        self._precision = PRECISIONS[precision]
        dtype = np.float16 if precision == "fp16" else np.float32
        arrays = {name: array.astype(dtype) for name, array in graph.parameters.items()}
        self._parameters = jax.device_put(arrays, self._on_card)
        self._classify = jax.jit(classifier(jax, dtype, graph.input_scale))
        self._images: Any = None
        self._labels: Any = None

    def active(self) -> AbstractContextManager[object]:
        """What float32 is multiplied in is a part of the key under which compiled functions are found."""
        context: AbstractContextManager[object] = self._jax.default_matmul_precision(self._precision)
        return context

    def load(self) -> None:
        """From page-locked memory."""
        self._images = self._jax.device_put(self._host, self._on_card)

    def enqueue(self) -> None:
        """One forward pass."""
        self._labels = self._classify(self._parameters, self._images)

    def synchronize(self) -> None:
        """JAX waits for arrays, not for a device: for the newest, which the device finishes last."""
        self._jax.block_until_ready((self._images, self._labels))

    def card_labels(self) -> np.ndarray:
        """A copy on the host."""
        return np.asarray(self._labels)

    def wipe(self) -> None:
        """Each run makes new arrays."""
        self._images = self._labels = None

    def run(self) -> None:
        """Copy in without waiting, classify, copy out."""
        images = self._few if self._few is not None else self._jax.device_put(self._host, self._on_card)
        self._host_labels[:] = np.asarray(self._classify(self._parameters, images))

    def close(self) -> None:
        """Arrays go with their last reference."""
        self._images = self._labels = self._host = self._parameters = self._classify = None


def classifier(jax: Any, dtype: type, scale: float) -> Any:
    """A function from parameters and images (N, 1, 28, 28) uint8 to labels (N,) uint8."""
    jnp, lax = jax.numpy, jax.lax

    def block(x: Any, filters: Any) -> Any:
        """Convolution, ReLU, mean over 2x2 windows; activations N, H, W, C, filters H, W, in, out as in the file."""
        x = lax.conv_general_dilated(x, filters, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        window = (1, 2, 2, 1)
        return lax.reduce_window(jnp.maximum(x, 0), dtype(0), lax.add, window, window, "VALID") * dtype(0.25)

    def classify(parameters: Any, images: Any) -> Any:
        x = images.transpose(0, 2, 3, 1).astype(dtype) * dtype(scale)
        x = block(block(x, parameters["conv1"]), parameters["conv2"])
        x = jnp.maximum(x.reshape(len(x), -1) @ parameters["fc1"], 0) @ parameters["fc2"]
        return jnp.argmax(x, axis=1).astype(jnp.uint8)

    return classify
