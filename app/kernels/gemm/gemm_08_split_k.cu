// With few rows there are too few tiles to fill the card, so this step also cuts each sum into parts. A block adds up
// the PART products of one part, and a second kernel adds the parts in their order.
//
// Data: x (rows, DEPTH) INPUT; w (DEPTH, N) float; bias (N) or null; y (rows, N) OUTPUT;
//       workspace parts (rows, PARTS, N) float.
// Launch: gemm_split_k with blockIdx.x = tile of BM rows, blockIdx.y = tile of BN columns, blockIdx.z = part of the
//         depth, a thread for each column; then gemm_split_k_finish with one thread per element of y.
// The order of summation is fixed by PART alone: results do not depend on the batch, but differ from the other steps'.
#include "parts.cuh"

constexpr int CHUNK = PART < 64 ? PART : 64;  // columns of x in shared memory at a time

extern "C" __global__ void __launch_bounds__(BN)
    gemm_split_k(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                 OUTPUT *__restrict__ y, float *__restrict__ parts, int rows) {
    __shared__ float xs[CHUNK][BM];

    const long long row0 = blockIdx.x * (long long)BM;
    const int n = blockIdx.y * BN + threadIdx.x;
    const int first = blockIdx.z * PART, last = first + PART < DEPTH ? first + PART : DEPTH;

    float sums[BM] = {};
    for (int k0 = first; k0 < last; k0 += CHUNK) {
        __syncthreads();  // all threads have read the previous chunk
        for (int at = threadIdx.x; at < BM * CHUNK; at += BN) {
            const long long row = row0 + at / CHUNK;
            const int k = k0 + at % CHUNK;
            xs[at % CHUNK][at / CHUNK] = row < rows && k < last ? float(x[row * DEPTH + k]) : 0.0f;
        }
        __syncthreads();
#pragma unroll 16
        for (int k = 0; k < CHUNK; k++) {
            const float weight = k0 + k < last && n < N ? w[(long long)(k0 + k) * N + n] : 0.0f;
#pragma unroll
            for (int i = 0; i < BM; i++) sums[i] = fmaf(xs[k][i], weight, sums[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < BM; i++)
        if (row0 + i < rows && n < N) parts[((row0 + i) * PARTS + blockIdx.z) * N + n] = sums[i];
}

extern "C" __global__ void gemm_split_k_finish(const INPUT *__restrict__ x, const float *__restrict__ w,
                                               const float *__restrict__ bias, OUTPUT *__restrict__ y,
                                               const float *__restrict__ parts, int rows) {
    finish_parts(parts, bias, y, rows);
}
