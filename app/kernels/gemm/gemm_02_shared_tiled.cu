// A block loads TILE x TILE pieces of x and w to shared memory once, and all its threads read them there. One thread
// still computes one element of y.
//
// Data: x (rows, DEPTH) INPUT; w (DEPTH, N) WEIGHT; bias (N) REAL or null; y (rows, N) OUTPUT. All row-major.
// Launch: blockIdx.x = tile of rows, blockIdx.y = tile of columns, TILE * TILE threads; a warp shares rows of y.
// The sum of an element runs over k in order, as in `naive`: both agree to the bit.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    gemm_shared_tiled(const INPUT *x, const WEIGHT *w, const REAL *bias, OUTPUT *y, int rows, int DEPTH, int N) {
    __shared__ REAL xs[TILE][TILE], ws[TILE][TILE];

    const int i = threadIdx.x / TILE, j = threadIdx.x % TILE;
    const long long row = blockIdx.x * (long long)TILE + i;
    const int n = blockIdx.y * TILE + j;

    REAL sum = 0;
    for (int k0 = 0; k0 < DEPTH; k0 += TILE) {
        // Elements beyond the edges are zeros, which add nothing.
        xs[i][j] = row < rows && k0 + j < DEPTH ? REAL(x[row * DEPTH + k0 + j]) : REAL(0);
        ws[i][j] = k0 + i < DEPTH && n < N ? REAL(w[(long long)(k0 + i) * N + n]) : REAL(0);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; k++) sum = fused_multiply_add(xs[i][k], ws[k][j], sum);
        __syncthreads();
    }
    if (row < rows && n < N)
        y[row * N + n] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[n] : REAL(0)));
}
