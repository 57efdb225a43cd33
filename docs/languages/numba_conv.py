"""The implicit product on tensor cores in Numba CUDA: a block of four warps computes 64 maps x 64 pixels, one image.

Numba has no function for tensor cores. An intrinsic writes the instruction ``mma`` into the code that LLVM compiles.

Hidden: the compiler and the types. Threads, shared memory, barriers and fragments stand in the kernel as in CUDA C++.
"""

from typing import Any

import numpy as np
from numba import cuda, float32, uint32
from numba.core import config

C, SIDE, K, M = 32, 12, 5, 64  # constants of the kernel: lenet5's conv2
OUT, TAPS = SIDE - K + 1, K * K
PLANES, STAGES = 4, C // 8  # a stage multiplies 8 channels, which are 4 planes of pairs: a word holds both of a pair
WORDS = (PLANES * TAPS + 7) // 8 * 8  # of a filter in a stage, with zeros behind its taps
PITCH, PLANE, THREADS = M + 8, SIDE * SIDE + 8, 128  # eight words more: the lanes that read at once hit all banks

if config.ENABLE_CUDASIM:
    from docs.languages.numba_simulator import mma
else:
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.cuda.extending import intrinsic

    PTX = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"

    @intrinsic
    def mma(
        typing: Any, a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, d0: Any, d1: Any, d2: Any, d3: Any
    ) -> Any:
        """Return a warp's 16 x 8 sums d + a b as four float32 of this lane. a, b: words of two float16."""

        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(ir.LiteralStructType([ir.FloatType()] * 4), [value.type for value in arguments])
            code = ir.InlineAsm(kind, PTX, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", side_effect=True)
            found = builder.call(code, arguments)
            return cgutils.pack_array(builder, [builder.extract_value(found, at) for at in range(4)])

        return types.UniTuple(types.float32, 4)(*[types.uint32] * 6, *[types.float32] * 4), write


@cuda.jit
def conv(x: Any, w: Any, y: Any) -> None:
    """x (images, C, SIDE * SIDE) bits of float16, w (STAGES, WORDS, M) pairs of float16, y (images, M, OUT * OUT)."""
    filters = cuda.shared.array((WORDS, PITCH), uint32)
    inputs = cuda.shared.array((PLANES, PLANE), uint32)
    sums = cuda.local.array((4, 2, 4), float32)
    t, image = cuda.threadIdx.x, cuda.blockIdx.x
    g, pair, row = t % 32 // 4, t % 4, t // 32 * 2  # a warp computes two rows of pixels; g: pixel of a row, or map
    for m in range(4):
        for n in range(2):
            for i in range(4):
                sums[m, n, i] = float32(0)
    for stage in range(STAGES):
        cuda.syncthreads()  # the stage before has been read
        for i in range(t, WORDS * M, THREADS):
            filters[i // M, i % M] = w[stage, i // M, i % M]
        for i in range(t, PLANES * SIDE * SIDE, THREADS):
            plane, at = i // (SIDE * SIDE), i % (SIDE * SIDE)
            channel = stage * 8 + plane * 2
            inputs[plane, at] = uint32(x[image, channel, at]) | uint32(x[image, channel + 1, at]) << uint32(16)
        cuda.syncthreads()
        for k in range(WORDS // 8):  # two taps; the last filter word has zeros for the second
            near, far = 2 * k, (2 * k + 1) % TAPS
            near, far = near // K * SIDE + near % K, far // K * SIDE + far % K
            for n in range(2):
                window = (row + n) * SIDE + g
                b0, b1 = inputs[pair, window + near], inputs[pair, window + far]
                for m in range(4):
                    low, high, d = k * 8 + pair, m * 16 + g, sums[m, n]
                    a0, a1 = filters[low, high], filters[low, high + 8]
                    a2, a3 = filters[low + 4, high], filters[low + 4, high + 8]
                    d[0], d[1], d[2], d[3] = mma(a0, a1, a2, a3, b0, b1, d[0], d[1], d[2], d[3])
    for m in range(4):
        for n in range(2):
            for i in range(4):
                y[image, m * 16 + g + i // 2 * 8, (row + n) * OUT + pair * 2 + i % 2] = np.float16(sums[m, n, i])


def bind(x: Any, w: Any, y: Any, stream: Any) -> tuple[Any, Any, Any]:
    """Return three functions: one enqueues y = conv(x, w) on the stream, one waits for it, one returns y.

    x (images, C, H, W), w (C, K, K, M), y (images, M, OH, OW): float16, CuPy arrays, or NumPy arrays to interpret.
    stream: of CuPy; None to interpret.
    """
    bits = (w if stream is None else w.get()).view("uint16").reshape(STAGES, PLANES, 2, TAPS, M).astype("uint32")
    words = (bits[:, :, 0] | bits[:, :, 1] << 16).transpose(0, 2, 1, 3).reshape(STAGES, -1, M)  # once
    words = np.pad(words, ((0, 0), (0, WORDS - PLANES * TAPS), (0, 0)))
    arrays = x.view("uint16").reshape(len(x), C, -1), cuda.to_device(words), y.reshape(len(y), M, -1)
    if stream is None:
        return lambda: conv[len(x), THREADS](*arrays), lambda: None, lambda: y
    launch = conv[len(x), THREADS, cuda.external_stream(stream.ptr)]
    inputs, weights, results = map(cuda.as_cuda_array, arrays)  # once: else each launch would wait for CuPy's stream
    return lambda: launch(inputs, weights, results), stream.synchronize, lambda: y
