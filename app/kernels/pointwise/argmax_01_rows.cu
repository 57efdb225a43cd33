// An argmax that is not fused into another kernel. One thread per row.
//
// From: lenet5 (argmax of the ten outputs).
// Data: x (images, N) INPUT; labels (images) uint8: the column of the greatest value, the first one among equals.
// Launch: a grid of 1-D blocks over the rows.
// Bound by: device memory and latency; rows are short.
#include "common.cuh"

static_assert(N <= 256, "a label is one byte");

extern "C" __global__ void argmax_rows(const INPUT *__restrict__ x, uint8 *__restrict__ labels, int images) {
    const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (row >= images) return;
    const INPUT *values = x + row * N;
    int best = 0;
    for (int n = 1; n < N; n++)
        if (wins(REAL(values[n]), n, REAL(values[best]), best)) best = n;
    labels[row] = best;
}
