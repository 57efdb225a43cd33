// The kernel works like `register-square`, but a thread's rows and columns are four neighbours each, which it reads
// from shared memory by one instruction of 16 bytes.
//
// Data: x (rows, DEPTH) INPUT; w (DEPTH, N) float; bias (N) or null; y (rows, N) OUTPUT. All row-major.
// Launch: blockIdx.x = tile of BM rows, blockIdx.y = tile of BN columns, THREADS threads.
// The sum of an element runs over k in order, as in `naive`: both agree to the bit.
#include "common.cuh"

constexpr int LANES_N = BN / TN;
constexpr int THREADS = (BM / TM) * LANES_N;
constexpr int PADDED_BM = BM + 4;  // x is stored transposed: the padding spreads a column over the banks

static_assert(TM == 4 && TN == 4, "tiles are read from shared memory four floats at a time");

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_wide_loads(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                    OUTPUT *__restrict__ y, int rows) {
    __shared__ __align__(16) float xs[BK][PADDED_BM];
    __shared__ __align__(16) float ws[BK][BN];

    const int t = threadIdx.x;
    const long long row0 = blockIdx.x * (long long)BM;
    const int column0 = blockIdx.y * BN;
    const int thread_m = t / LANES_N, thread_n = t % LANES_N;

    float sums[TM][TN] = {};
    for (int k0 = 0; k0 < DEPTH; k0 += BK) {
        // Elements beyond the edges are zeros, which add nothing.
        for (int at = t; at < BM * BK; at += THREADS) {
            const int k = k0 + at % BK;
            const long long row = row0 + at / BK;
            xs[at % BK][at / BK] = row < rows && k < DEPTH ? float(x[row * DEPTH + k]) : 0.0f;
        }
        for (int at = t; at < BK * BN; at += THREADS) {
            const int k = k0 + at / BN, column = column0 + at % BN;
            ws[at / BN][at % BN] = k < DEPTH && column < N ? w[k * N + column] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; k++) {
            alignas(16) float a[TM], b[TN];
            *(float4 *)a = *(const float4 *)&xs[k][thread_m * TM];
            *(float4 *)b = *(const float4 *)&ws[k][thread_n * TN];
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < TM; i++) {
        const long long row = row0 + thread_m * TM + i;
#pragma unroll
        for (int j = 0; j < TN; j++) {
            const int n = column0 + thread_n * TN + j;
            if (row < rows && n < N)
                y[row * N + n] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sums[i][j], HAS_BIAS ? bias[n] : 0.0f));
        }
    }
}
