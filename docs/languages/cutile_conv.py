"""The implicit product on tensor cores in cuTile: a block computes 64 maps x 64 pixels, one image.

Hidden: what Triton hides, and also the number of warps; an array has a shape, so that the kernel indexes it by image,
channel and pixel, not by address.
"""

from typing import Any

import cuda.tile as ct

C, SIDE, K, M = 32, 12, 5, 64  # constants of the kernel: lenet5's conv2
OUT = SIDE - K + 1


@ct.kernel
def conv(x, w, y):
    """x (images, C, SIDE * SIDE), w (K * K, M, C), y (images, M, OUT * OUT): float16."""
    image = ct.bid(0)
    channel = ct.arange(C, dtype=ct.int32)[:, None]
    pixel = ct.arange(OUT * OUT, dtype=ct.int32)[None, :]
    window = pixel // OUT * SIDE + pixel % OUT
    sums = ct.zeros((M, OUT * OUT), dtype=ct.float32)
    for tap in range(K * K):  # a step of the product: all channels of one tap
        a = ct.load(w, index=(tap, 0, 0), shape=(1, M, C)).reshape((M, C))
        b = ct.gather(x, (image, channel, window + (tap // K * SIDE + tap % K)))
        sums = ct.mma(a, b, sums)
    ct.store(y, index=(image, 0, 0), tile=ct.astype(sums, ct.float16).reshape((1, M, OUT * OUT)))


def bind(x: Any, w: Any, y: Any, stream: Any) -> tuple[Any, Any, Any]:
    """Return three functions: one enqueues y = conv(x, w) on the stream, one waits for it, one returns y.

    x (images, C, H, W), w (C, K, K, M), y (images, M, OH, OW): float16, CuPy arrays. stream: of CuPy.
    """
    packed = w.transpose(1, 2, 3, 0).reshape(K * K, M, C).copy()  # once, as when weights are loaded
    arrays = (x.reshape(len(x), C, -1), packed, y.reshape(len(y), M, -1))
    return lambda: ct.launch(stream, (len(x), 1, 1), conv, arrays), stream.synchronize, lambda: y
