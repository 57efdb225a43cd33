// Training: the gradient of a convolution's filters, as an implicit GEMM: taps by maps, the sum over all output pixels.
//
// The idea: a small result and a very long sum, so the sum is cut into parts to fill the card; train_sum_parts adds them.
// From: none of the five systems trained convolutions.
// Data: x (images, C, H, W); dy (images, M, OH, OW); parts (gridDim.z, K * K * C, M), overwritten; all float.
// Launch: blockIdx.x = tile of BM taps, blockIdx.y = tile of BN maps, blockIdx.z = part: `part` output pixels, a
//         multiple of BK; parts beyond the last pixel are zero.
// Bound by: the fp32 pipes; loads, one element at a time, for few taps or maps.
#include "train_window.cuh"

// x as (taps, k) with k over the pixels of all images.
struct Inputs {
    static constexpr bool ALONG_K = true;
    struct Row {
        int offset, p, q;  // of the tap; offset < 0: beyond the last
    };
    struct Step {
        long long start;  // of the window; negative: no more pixels
        int row, column;
    };
    const float *x;

    __device__ __forceinline__ Row row(int tap) const {
        return {tap < TAPS ? (tap % C * H + tap / C / K) * W + tap / C % K : -1, tap / C / K, tap / C % K};
    }
    __device__ __forceinline__ Step step(int k0, int i, int last) const {
        return {k0 + i < last ? window_start(k0 + i) : -1, window_row(k0 + i), window_column(k0 + i)};
    }
    __device__ __forceinline__ float at(Row row, Step step) const {
        const bool there = in_memory(step.row + row.p, step.column + row.q);
        return there && row.offset >= 0 && step.start >= 0 ? x[step.start + row.offset - PADDING * (W + 1)] : 0.0f;
    }
};

// dy as (maps, k).
struct Outputs {
    static constexpr bool ALONG_K = true;
    typedef int Row;
    typedef long long Step;
    const float *dy;

    __device__ __forceinline__ Row row(int map) const { return map < M ? map * PIXELS : -1; }
    __device__ __forceinline__ Step step(int k0, int i, int last) const {
        const int n = k0 + i;
        return n < last ? n / PIXELS * (long long)(M * PIXELS) + n % PIXELS : -1;
    }
    __device__ __forceinline__ float at(Row row, Step step) const {
        return row >= 0 && step >= 0 ? dy[step + row] : 0.0f;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    train_conv_filters(const float *__restrict__ x, const float *__restrict__ dy, float *__restrict__ parts, int images,
                       int part) {
    const int pixels = images * PIXELS;
    const long long first = blockIdx.z * (long long)part;
    const int start = min(first, (long long)pixels), end = min(first + part, (long long)pixels);
    product(Inputs{x}, Outputs{dy}, blockIdx.x * BM, blockIdx.y * BN, start, end,
            Plain{parts + blockIdx.z * (long long)(TAPS * M), TAPS, M});
}
