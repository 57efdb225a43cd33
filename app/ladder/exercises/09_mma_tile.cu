// A product by the tensor cores
//
// mma_tf32(d, a, b) adds the product of two small matrices to a third: d (16 x 8) += a (16 x 8) b (8 x 8), by all lanes
// of a warp at once. Each lane holds a part of each matrix in registers. With lane = 4 * g + t it has
//   a[0] row g, column t          a[1] row g + 8, column t      b[0] row t, column g
//   a[2] row g, column t + 4      a[3] row g + 8, column t + 4  b[1] row t + 4, column g
//   d[0], d[1] row g, columns 2 t and 2 t + 1;                  d[2], d[3] row g + 8, the same columns.
// to_tf32 rounds a float to the 11 bits that the tensor cores multiply. A warp computes 16 images of 8 outputs here.
//
// Fill a and b, with zeros beyond the edges. All lanes must come to mma_tf32, so no lane may return early.
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
        // a[…] = to_tf32(…), b[…] = to_tf32(…)
        mma_tf32(d, a, b);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int image = first_image + g + i / 2 * 8, n = first_n + 2 * t + i % 2;
        if (image < images && n < N) y[image * N + n] = HAS_BIAS ? d[i] + bias[n] : d[i];
    }
}
