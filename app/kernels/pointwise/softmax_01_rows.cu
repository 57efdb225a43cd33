// Softmax of rows, step 1: one warp per row. exp(x - max) / sum of exp(x - max); maximum and sum by shuffles.
//
// From: fa19, minidnn86, mlp (which had separate kernels for exp, row sums and division).
// Data: x (rows, CLASSES) INPUT; y (rows, CLASSES) OUTPUT. A NaN or a positive infinity makes its whole row NaN.
// Launch: a grid of 1-D blocks, 32 threads for each row. Lane l takes columns l, l + 32, ...
// Bound by: latency; device memory if rows are long: the second and third reads of x hit the cache.
#include "common.cuh"

extern "C" __global__ void softmax_rows(const INPUT *__restrict__ x, OUTPUT *__restrict__ y, int rows) {
    const long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;  // the whole warp returns
    x += row * CLASSES, y += row * CLASSES;

    REAL most = x[0];
    for (int i = lane; i < CLASSES; i += 32) most = pool_step<true>(most, REAL(x[i]));
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) most = pool_step<true>(most, __shfl_xor_sync(0xffffffff, most, apart));

    REAL sum = 0;
    for (int i = lane; i < CLASSES; i += 32) sum += exp(REAL(x[i]) - most);
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffff, sum, apart);

    for (int i = lane; i < CLASSES; i += 32) y[i] = OUTPUT(exp(REAL(x[i]) - most) / sum);
}
