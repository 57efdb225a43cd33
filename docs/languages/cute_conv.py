"""The implicit product on tensor cores in CuTe DSL: a block of four warps computes 64 maps x 64 pixels, one image.

A layout is a function from coordinates to addresses. So the matrix of all windows is a view of the pixels in shared
memory, in which a pixel occurs up to 25 times: it exists nowhere.

Hidden: which lane holds which element of a fragment, and the addresses of windows and filters, which follow from the
layouts. Blocks, shared memory, barriers and the instruction stand in the kernel.
"""

from typing import Any

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import cute
from cutlass.cute.nvgpu import warp
from cutlass.cute.runtime import from_dlpack

C, SIDE, K, M = 32, 12, 5, 64  # constants of the kernel: lenet5's conv2
OUT, PITCH, THREADS = SIDE - K + 1, C + 8, 128  # eight channels more: the lanes that read at once hit all banks


@cute.kernel
def conv(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, product: cute.TiledMma):
    """x (images, C, SIDE * SIDE), w (K * K, M, C), y (images, M, OUT * OUT): float16."""
    t, _, _ = cute.arch.thread_idx()
    image, _, _ = cute.arch.block_idx()
    pixels = cutlass.utils.SmemAllocator().allocate_tensor(
        cutlass.Float16, cute.make_layout((SIDE * SIDE, C), stride=(PITCH, 1)), byte_alignment=16
    )
    for i in range(t, SIDE * SIDE * C, THREADS):
        pixels[i % (SIDE * SIDE), i // (SIDE * SIDE)] = x[image, i // (SIDE * SIDE), i % (SIDE * SIDE)]
    cute.arch.sync_threads()
    # Map; channel, column and row of a term. Column and row of a pixel of the output; a term.
    filters = cute.make_layout((M, (C, K, K)), stride=(C, (1, M * C, K * M * C)))
    windows = cute.make_layout(((OUT, OUT), (C, K, K)), stride=((PITCH, SIDE * PITCH), (1, PITCH, SIDE * PITCH)))
    lane = product.get_slice(t)
    filters = lane.partition_A(cute.make_tensor(w.iterator, filters))
    inputs = lane.partition_B(cute.make_tensor(pixels.iterator, windows))
    outputs = lane.partition_C(y[image, None, None])
    sums = product.make_fragment_C(outputs.shape)
    sums.fill(0)
    for k in cutlass.range_constexpr(C * K * K // 16):  # without a loop: all offsets are known
        a = product.make_fragment_A(filters[None, None, k])
        b = product.make_fragment_B(inputs[None, None, k])
        cute.autovec_copy(filters[None, None, k], a)
        cute.autovec_copy(inputs[None, None, k], b)
        cute.gemm(product, sums, a, b, sums)
    rounded = cute.make_fragment_like(sums, cutlass.Float16)
    rounded.store(sums.load().to(cutlass.Float16))
    cute.autovec_copy(rounded, outputs)


@cute.jit
def launch(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, stream: CUstream):
    """Start a block for each image."""
    instruction = warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16))
    product = cute.make_tiled_mma(instruction, cute.make_layout((1, 4, 1)))
    conv(x, w, y, product).launch(grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1), stream=stream)


def bind(x: Any, w: Any, y: Any, stream: Any) -> tuple[Any, Any, Any]:
    """Return three functions: one enqueues y = conv(x, w) on the stream, one waits for it, one returns y.

    x (images, C, H, W), w (C, K, K, M), y (images, M, OH, OW): float16, CuPy arrays. stream: of CuPy.
    """
    packed = w.transpose(1, 2, 3, 0).reshape(K * K, M, C).copy()  # once, as when weights are loaded
    shaped = x.reshape(len(x), C, -1), packed, y.reshape(len(y), M, -1)
    arguments = [*(from_dlpack(array, assumed_align=16) for array in shaped), CUstream(stream.ptr)]
    compiled = cute.compile(launch, *arguments)
    return lambda: compiled(*arguments), stream.synchronize, lambda: y
