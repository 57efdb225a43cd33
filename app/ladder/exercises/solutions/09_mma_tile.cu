// Bit 0 of the register's number chooses the row of a, bit 1 its column.
//@ kernel: gemm
//@ types: tf32
//@ instructions: mma
//@ block: 32
//@ grid: ceil_div(N, 8), ceil_div(images, 16)
//@ without: activation, bytes
#include "common.cuh"
#include "mma.cuh"

extern "C" __global__ void mma_tile(const float *x, const float *w, const float *bias, float *y, int images) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4, first_image = blockIdx.y * 16, first_n = blockIdx.x * 8;
    float d[4] = {};
    for (int k = 0; k < DEPTH; k += 8) {
        unsigned a[4] = {}, b[2] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int image = first_image + g + i % 2 * 8, column = k + t + i / 2 * 4;
            a[i] = to_tf32(image < images && column < DEPTH ? x[image * DEPTH + column] : 0.0f);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = k + t + i * 4, n = first_n + g;
            b[i] = to_tf32(row < DEPTH && n < N ? w[row * N + n] : 0.0f);
        }
        mma_tf32(d, a, b);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int image = first_image + g + i / 2 * 8, n = first_n + 2 * t + i % 2;
        if (image < images && n < N) y[image * N + n] = HAS_BIAS ? d[i] + bias[n] : d[i];
    }
}
