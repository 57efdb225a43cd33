// Matrix product, step 1: naive. One thread computes one element of y = x w.
//
// From: mlp (GEMM without shared memory), minidnn86 ("GEMM without shared memory").
// Data: x (rows, DEPTH) INPUT; w (DEPTH, N) REAL; bias (N) or null; y (rows, N) REAL. All row-major.
// Launch: a grid of 1-D blocks over the rows * N elements; neighbouring threads share a row of x.
// Bound by: load instructions, two for every multiply-add.
// Compiled with REAL=float64 it is the oracle on the card.
#include "common.cuh"

extern "C" __global__ void gemm_naive(const INPUT *x, const REAL *w, const REAL *bias, REAL *y, int rows, int DEPTH,
                                      int N) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at >= (long long)rows * N) return;
    const int n = at % N;
    const INPUT *row = x + at / N * DEPTH;
    REAL sum = 0;
    for (int k = 0; k < DEPTH; k++) sum = fused_multiply_add(REAL(row[k]), w[(long long)k * N + n], sum);
    y[at] = bias_relu<HAS_BIAS, HAS_RELU>(sum, HAS_BIAS ? bias[n] : REAL(0));
}
