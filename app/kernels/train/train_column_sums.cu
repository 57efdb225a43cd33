// Sums over images (and pixels): the gradient of a bias. A parallel reduction in an order that the sizes alone decide.
//
// From: mlp (one thread per column, with uncoalesced reads).
// Data: x (images, COLUMNS, PIXELS) float32; y (parts, COLUMNS): sums over the pixels of each part of the images. A
//       second launch adds several parts, as if they were images of one pixel.
// Launch: blocks of 256 threads, gridDim.y of them for the parts. With one pixel, a block for 32 columns: a warp reads
//         along a row, the warps take rows in turn. Else a block for each column, its threads along the pixels.
// Bound by: device memory.
#include "train_sum.cuh"

constexpr int WARPS = 8;

extern "C" __global__ void train_column_sums(const float *__restrict__ x, float *__restrict__ y, int images) {
    float sum = 0;
    if (PIXELS == 1) {
        __shared__ float of_warps[WARPS][32];
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
        if (column < COLUMNS) {
#pragma unroll 8
            for (int row = blockIdx.y * WARPS + warp; row < images; row += gridDim.y * WARPS)
                sum += x[row * (long long)COLUMNS + column];
        }
        of_warps[warp][lane] = sum;
        __syncthreads();
        if (warp > 0 || column >= COLUMNS) return;
        for (int other = 1; other < WARPS; other++) sum += of_warps[other][lane];
        y[blockIdx.y * COLUMNS + column] = sum;
    } else {
        for (int image = blockIdx.y; image < images; image += gridDim.y) {
            const float *map = x + (image * (long long)COLUMNS + blockIdx.x) * PIXELS;
#pragma unroll 4
            for (int pixel = threadIdx.x; pixel < PIXELS; pixel += blockDim.x) sum += map[pixel];
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) y[blockIdx.y * COLUMNS + blockIdx.x] = sum;
    }
}
