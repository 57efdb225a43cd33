// Training: convolution forward, y = activation(x * w + bias), as an implicit GEMM: maps by pixels, the sum over taps.
//
// The idea: the im2col matrix is gathered from the images on its way to shared memory; the filters in memory already
// are the transposed left matrix.
// From: lenet5 and fa19 (unroll + GEMM in one kernel), with the weights file's own layout of filters.
// Data: x (images, C, H, W); w (K, K, C, M); bias (M) or null; y (images, M, OH, OW); all float.
// Launch: blockIdx.x = tile of BN pixels over all images, blockIdx.y = tile of BM maps.
// Bound by: the fp32 pipes for long sums; gathering for few maps.
#include "train_window.cuh"

struct Windows {
    static constexpr bool ALONG_K = false;
    struct Row {
        const float *start;  // start of the window; null beyond the last pixel
        int row, column;
    };
    struct Step {
        int offset, p, q;  // of the tap; offset < 0: no more taps
    };
    const float *x;
    int pixels;

    __device__ __forceinline__ Row row(int n) const {
        return {n < pixels ? x + window_start(n) : nullptr, window_row(n), window_column(n)};
    }
    __device__ __forceinline__ Step step(int k0, int i, int last) const {
        return {k0 + i < last ? tap_offset(Tap<C>(k0, i)) : -1, Tap<C>(k0, i).p, Tap<C>(k0, i).q};
    }
    __device__ __forceinline__ float at(Row row, Step step) const {
        if (!in_memory(row.row + step.p, row.column + step.q)) return 0;
        return row.start && step.offset >= 0 ? row.start[step.offset - PADDING * (W + 1)] : 0.0f;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    train_conv(const float *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
               float *__restrict__ y, int images) {
    const int pixels = images * PIXELS;
    const auto finish = [&](int map, int n, const float *sums) {
        if (map >= M || n >= pixels) return;
        const float shift = HAS_BIAS ? bias[map] : 0.0f;
        float out[4];
#pragma unroll
        for (int j = 0; j < 4; j++) out[j] = epilogue<HAS_BIAS, ACTIVATION>(sums[j], shift);
        const auto place = [&](int at) { return y + (at / PIXELS * (long long)M + map) * PIXELS + at % PIXELS; };
        if constexpr (PIXELS % 4 == 0) {
            store4(place(n), out);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (n + j < pixels) *place(n + j) = out[j];
        }
    };
    product(Matrix<false>{w, M, M}, Windows{x, pixels}, blockIdx.y * BM, blockIdx.x * BN, 0, TAPS, finish);
}
