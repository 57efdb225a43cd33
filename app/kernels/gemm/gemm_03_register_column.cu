// The register tile has one dimension: the kernel works like `shared-tiled`, but a thread computes TM elements of a
// column of y, with their sums in registers. A value of w read once from shared memory serves TM multiply-adds.
//
// Data: x (rows, DEPTH) INPUT; w (DEPTH, N) WEIGHT; bias (N) REAL or null; y (rows, N) OUTPUT. All row-major.
// Launch: blockIdx.x = tile of BM rows, blockIdx.y = tile of BN columns, BM / TM x BN threads; a thread's rows are
//         BM / TM apart.
// The sum of an element runs over k in order, as in `naive`: both agree to the bit.
#include "common.cuh"

constexpr int ROWS = BM / TM;  // of threads: each row has BN columns
constexpr int THREADS = ROWS * BN;
constexpr int PADDED_BM = BM + 4;  // x is stored transposed: the padding spreads a column over the banks

static_assert(BM % TM == 0, "thread tiles must cover the block tile exactly");

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_register_column(const INPUT *__restrict__ x, const WEIGHT *__restrict__ w, const REAL *__restrict__ bias,
                         OUTPUT *__restrict__ y, int rows) {
    __shared__ REAL xs[BK][PADDED_BM], ws[BK][BN];

    const int t = threadIdx.x, i = t / BN, j = t % BN;
    const long long row0 = blockIdx.x * (long long)BM;
    const int column0 = blockIdx.y * BN, n = column0 + j;

    REAL sums[TM] = {};
    for (int k0 = 0; k0 < DEPTH; k0 += BK) {
        // Elements beyond the edges are zeros, which add nothing.
        for (int at = t; at < BM * BK; at += THREADS) {
            const int k = k0 + at % BK;
            const long long row = row0 + at / BK;
            xs[at % BK][at / BK] = row < rows && k < DEPTH ? REAL(x[row * DEPTH + k]) : REAL(0);
        }
        for (int at = t; at < BK * BN; at += THREADS) {
            const int k = k0 + at / BN, column = column0 + at % BN;
            ws[at / BN][at % BN] = k < DEPTH && column < N ? REAL(w[(long long)k * N + column]) : REAL(0);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; k++) {
            const REAL weight = ws[k][j];
#pragma unroll
            for (int m = 0; m < TM; m++) sums[m] = fused_multiply_add(xs[k][i + m * ROWS], weight, sums[m]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < TM; m++) {
        const long long row = row0 + i + m * ROWS;
        if (row < rows && n < N)
            y[row * N + n] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sums[m], HAS_BIAS ? bias[n] : REAL(0)));
    }
}
