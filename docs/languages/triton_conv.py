"""The implicit product on tensor cores in Triton: a program of four warps computes 64 maps x 64 pixels, one image.

Hidden: the threads and their share of the tile, shared memory, barriers, the layout of fragments, copies ahead of the
product, and which instruction multiplies. A program cannot index shared memory, so it loads the pixels of every tap.
"""

from typing import Any

import torch
import triton
import triton.language as tl

WARPS = 4


@triton.jit
def conv(
    x,
    w,
    y,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    maps: tl.constexpr,
    kernel: tl.constexpr,
):
    """x (images, C, H, W), w (C, K, K, M), y (images, M, OH, OW): float16. Tiles have powers of two as sides."""
    columns: tl.constexpr = width - kernel + 1
    pixels: tl.constexpr = (height - kernel + 1) * columns
    image = tl.program_id(0).to(tl.int64)
    channel, row, pixel = tl.arange(0, channels), tl.arange(0, maps)[:, None], tl.arange(0, pixels)[None, :]
    # Addresses of the first tap: of all filters, and of the windows of all pixels.
    filters = w + row + channel[None, :] * (kernel * kernel * maps)
    corners = pixel // columns * width + pixel % columns
    windows = x + (image * channels + channel[:, None]) * (height * width) + corners
    sums = tl.zeros((maps, pixels), tl.float32)
    for tap in range(kernel * kernel):  # a step of the product: all channels of one tap
        a = tl.load(filters + tap * maps)
        b = tl.load(windows + tap // kernel * width + tap % kernel)
        sums = tl.dot(a, b, sums)
    tl.store(y + (image * maps + row) * pixels + pixel, sums.to(tl.float16))


def bind(x: Any, w: Any, y: Any, stream: Any) -> tuple[Any, Any, Any]:
    """Return three functions: one enqueues y = conv(x, w) on the stream, one waits for it, one returns y.

    x (images, C, H, W), w (C, K, K, M), y (images, M, OH, OW): float16, CuPy arrays, or NumPy arrays to interpret.
    stream: of CuPy; None to interpret.
    """
    shape = (*x.shape[1:], w.shape[3], w.shape[1])
    if stream is None:
        arrays = [torch.from_numpy(array) for array in (x, w, y)]  # Triton's interpreter writes into y itself
        return lambda: conv[(len(x),)](*arrays, *shape, num_warps=WARPS), lambda: None, lambda: y
    torch.cuda.set_stream(torch.cuda.ExternalStream(stream.ptr))  # Triton launches on PyTorch's current stream
    arrays = [torch.as_tensor(array, device="cuda") for array in (x, w, y)]  # the same memory
    return lambda: conv[(len(x),)](*arrays, *shape, num_warps=WARPS), stream.synchronize, lambda: y
