// Training: matrix product with transposes, y = activation(alpha op(a) op(b) + beta y + bias), all sizes at run time.
//
// The idea: both operands reach shared memory with k outermost, from whichever layout; where there are too few tiles to
// fill the card, the sum is cut into parts (SPLIT), which train_sum_parts adds.
// From: mlp (D = alpha A B + beta C, GEMM + broadcast bias), without shared memory.
// Data: a (m, k), or (k, m) with TRANSPOSE_A; b (k, n), or (n, k) with TRANSPOSE_B; bias (n) or null; y (m, n), and with
//       SPLIT instead of it parts (gridDim.z, m, n), overwritten; all float, row-major.
// Launch: blockIdx.x = tile of BM rows, blockIdx.y = tile of BN columns, blockIdx.z = part of `part` values of k.
// Bound by: the fp32 pipes, or by latency for small sizes.
#include "train_product.cuh"
#include "train_result.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    train_gemm(const float *__restrict__ a, const float *__restrict__ b, const float *__restrict__ bias, float *y, int m,
               int n, int k, int part, float alpha, float beta) {
    const Matrix<TRANSPOSE_A == 0> rows{a, m, TRANSPOSE_A ? m : k};
    const Matrix<TRANSPOSE_B != 0> columns{b, n, TRANSPOSE_B ? k : n};
    const long long first = blockIdx.z * (long long)part;
    const int start = min(first, (long long)k), end = min(first + part, (long long)k);
    const int first_row = blockIdx.x * BM, first_column = blockIdx.y * BN;
#if SPLIT
    product(rows, columns, first_row, first_column, start, end, Plain{y + blockIdx.z * (long long)m * n, m, n});
#else
    const Result result{y, bias, n, alpha, beta};
    product(rows, columns, first_row, first_column, start, end, [&](int row, int column, const float *sums) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (row < m && column + j < n) result.set(row, column + j, sums[j]);
    });
#endif
}
