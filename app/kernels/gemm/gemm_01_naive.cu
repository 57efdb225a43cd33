// One thread computes one element of y = x w.
//
// Data: x (rows, DEPTH) INPUT; w (DEPTH, N) WEIGHT; bias (N) REAL or null; y (rows, N) OUTPUT. All row-major.
// Launch: a grid of 1-D blocks over the rows * N elements; neighbouring threads share a row of x.
// Compiled with WEIGHT, REAL and OUTPUT = float64 it is the oracle on the card.
#include "common.cuh"

extern "C" __global__ void gemm_naive(const INPUT *x, const WEIGHT *w, const REAL *bias, OUTPUT *y, int rows,
                                      int DEPTH, int N) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at >= (long long)rows * N) return;
    const int n = at % N;
    const INPUT *row = x + at / N * DEPTH;
    REAL sum = 0;
    for (int k = 0; k < DEPTH; k++) sum = fused_multiply_add(REAL(row[k]), REAL(w[(long long)k * N + n]), sum);
    y[at] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[n] : REAL(0)));
}
