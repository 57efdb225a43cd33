// The register tile has two dimensions: the kernel works like `register-column`, but a thread computes TM x TN elements
// of y. A value read from shared memory then serves several multiply-adds: TN for x, TM for w.
//
// Data: x (rows, DEPTH) INPUT; w (DEPTH, N) WEIGHT; bias (N) REAL or null; y (rows, N) OUTPUT. All row-major.
// Launch: blockIdx.x = tile of BM rows, blockIdx.y = tile of BN columns, BM / TM x BN / TN threads; a thread's rows are
//         BM / TM apart, its columns BN / TN.
// The sum of an element runs over k in order, as in `naive`: both agree to the bit.
#include "common.cuh"

constexpr int ROWS = BM / TM, LANES = BN / TN;  // of threads
constexpr int THREADS = ROWS * LANES;
constexpr int PADDED_BM = BM + 4;  // x is stored transposed: the padding spreads a column over the banks

static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles must cover the block tile exactly");

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_register_square(const INPUT *__restrict__ x, const WEIGHT *__restrict__ w, const REAL *__restrict__ bias,
                         OUTPUT *__restrict__ y, int rows) {
    __shared__ REAL xs[BK][PADDED_BM], ws[BK][BN];

    const int t = threadIdx.x, i = t / LANES, j = t % LANES;
    const long long row0 = blockIdx.x * (long long)BM;
    const int column0 = blockIdx.y * BN;

    REAL sums[TM][TN] = {};
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
            REAL a[TM], b[TN];
#pragma unroll
            for (int m = 0; m < TM; m++) a[m] = xs[k][i + m * ROWS];
#pragma unroll
            for (int c = 0; c < TN; c++) b[c] = ws[k][j + c * LANES];
#pragma unroll
            for (int m = 0; m < TM; m++)
#pragma unroll
                for (int c = 0; c < TN; c++) sums[m][c] = fused_multiply_add(a[m], b[c], sums[m][c]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < TM; m++) {
        const long long row = row0 + i + m * ROWS;
#pragma unroll
        for (int c = 0; c < TN; c++) {
            const int n = column0 + j + c * LANES;
            if (row < rows && n < N)
                y[row * N + n] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sums[m][c], HAS_BIAS ? bias[n] : REAL(0)));
        }
    }
}
