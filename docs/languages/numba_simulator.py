"""Stand in for tensor cores in Numba's simulator, whose CUDA threads are Python threads: the lanes of a warp meet."""

from typing import Any

import numpy as np
from numba import cuda

_words = np.zeros((32, 32, 6), np.uint32)  # warp, lane, operand


@cuda.jit(device=True)
def mma(*operands: Any) -> tuple[Any, ...]:
    """Return this lane's four of the 16 x 8 sums d + a b. operands: a0 to a3 and b0, b1, words, then d0 to d3."""
    warp, lane = divmod(cuda.threadIdx.x, 32)
    _words[warp, lane] = operands[:6]
    cuda.syncthreads()
    halves = _words[warp].view(np.float16).astype(np.float32).reshape(8, 4, 3, 2, 2)  # g, t, operands in pairs, half
    # a0 and a1 hold rows g and g + 8, a2 and a3 the same of columns 8 to 15; b0 and b1 hold rows 0 to 7 and 8 to 15.
    a = halves[:, :, :2].transpose(3, 0, 2, 1, 4).reshape(16, 16)
    b = halves[:, :, 2].transpose(2, 1, 3, 0).reshape(16, 8)
    cuda.syncthreads()
    rows, columns = [lane // 4, lane // 4 + 8], [lane % 4 * 2, lane % 4 * 2 + 1]
    return tuple((a[rows] @ b[:, columns]).reshape(4) + np.array(operands[6:], np.float32))
