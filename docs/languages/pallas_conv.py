"""The implicit product on tensor cores in JAX Pallas: a program of four warps computes 64 maps x 64 pixels, one image.

JAX's arrays do not change. So the kernel gets the last y as an argument, and writes the next one to the same memory.
JAX 0.11 still compiles kernels in Triton's form, but calls this way deprecated.

Hidden: what Triton hides, to whose form Pallas translates this kernel, and also the stream, the memory of the results
and the launch, which is an operation of a compiled function.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as backend

WARPS = 4


def conv(sizes: tuple[int, ...], x: Any, w: Any, before: Any, y: Any) -> None:
    """x (images, C * H * W), w (K * K, M, C), y (1, M, OH * OW) of this image: float16. before: the last y, unread."""
    channels, height, width, maps, kernel = sizes
    image, columns = pl.program_id(0), width - kernel + 1
    pixels = jnp.arange((height - kernel + 1) * columns)
    corners = lax.div(pixels, columns) * width + lax.rem(pixels, columns)
    windows = jnp.arange(channels)[:, None] * (height * width) + corners[None, :]

    def add_tap(tap: Any, sums: Any) -> Any:  # a step of the product: all channels of one tap
        a = w[tap]
        b = x[image, windows + (lax.div(tap, kernel) * width + lax.rem(tap, kernel))]
        return sums + jnp.dot(a, b, preferred_element_type=jnp.float32)

    sums = lax.fori_loop(0, kernel**2, add_tap, jnp.zeros((maps, pixels.size), jnp.float32))
    y[0] = sums.astype(jnp.float16)


@partial(jax.jit, static_argnames=("sizes", "interpret"), donate_argnames="before")
def convolve(x: Any, w: Any, before: Any, sizes: tuple[int, ...], interpret: bool) -> Any:
    """Return conv(x, w) in the memory of ``before``: (images, M, OH * OW) float16."""
    everything = pl.BlockSpec(memory_space=pl.ANY)  # the kernel loads what it needs
    return pl.pallas_call(
        partial(conv, sizes),
        out_shape=jax.ShapeDtypeStruct(before.shape, before.dtype),
        grid=(len(x),),
        in_specs=[everything] * 3,
        out_specs=pl.BlockSpec((1, *before.shape[1:]), lambda image: (image, 0, 0)),
        input_output_aliases={2: 0},
        compiler_params=backend.CompilerParams(num_warps=WARPS, num_stages=2),
        interpret=interpret,
    )(x, w, before)


def bind(x: Any, w: Any, y: Any, stream: Any) -> tuple[Any, Any, Any]:
    """Return three functions: one enqueues y = conv(x, w), one waits for it, one returns a copy of y on the host.

    x (images, C, H, W), w (C, K, K, M), y (images, M, OH, OW): float16, CuPy arrays, or NumPy arrays to interpret.
    stream: of CuPy; None to interpret.
    """
    sizes = (*x.shape[1:], w.shape[3], w.shape[1])
    packed = w.transpose(1, 2, 3, 0).reshape(-1, w.shape[3], w.shape[0])  # once, as when weights are loaded
    arrays = [x.reshape(len(x), -1), packed, y.reshape(*y.shape[:2], -1)]
    inputs, weights, last = (jnp.array(array if stream is None else array.get()) for array in arrays)

    def enqueue() -> None:
        nonlocal last
        last = convolve(inputs, weights, last, sizes, stream is None)

    return enqueue, lambda: last.block_until_ready(), lambda: np.asarray(last).reshape(y.shape)
