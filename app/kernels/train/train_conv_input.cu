// Training: the gradient of a convolution's input, as an implicit GEMM: channels by input pixels, the sum over taps and
// maps of w dy.
//
// The idea: pixels are numbered in the order (h, image, w), so that a block's pixels have one or two values of h. Rows
// of taps that reach none of their windows are left out: a third of the work, and more for small images.
// From: none of the five systems trained convolutions.
// Data: dy (images, M, OH, OW); w (K, K, C, M); dx (images, C, H, W), overwritten; all float.
// Launch: blockIdx.x = tile of BN pixels, blockIdx.y = tile of BM channels.
// Taps beyond the edge of dy count as zeros: an infinite or NaN weight makes gradients at the image's edge NaN, too.
// Bound by: the fp32 pipes; gathering for few channels.
#include "train_window.cuh"

// Filters as (channels, k) with k over (p, q, map).
struct Filters {
    static constexpr bool ALONG_K = true;
    typedef int Row;
    typedef int Step;
    const float *w;

    __device__ __forceinline__ Row row(int channel) const { return channel < C ? channel * M : -1; }
    __device__ __forceinline__ Step step(int k0, int i, int last) const {
        const Tap<M> tap(k0, i);
        return k0 + i < last ? (tap.p * K + tap.q) * C * M + tap.map : -1;
    }
    __device__ __forceinline__ float at(Row row, Step step) const {
        return row >= 0 && step >= 0 ? w[row + step] : 0.0f;
    }
};

// dy for an input pixel: the output in whose window the pixel is tap (p, q).
struct Outputs {
    static constexpr bool ALONG_K = false;
    struct Row {
        const float *image;  // image of dy; null beyond the last pixel
        int h, w;
    };
    struct Step {
        int p, q, map;  // map < 0: no more taps
    };
    const float *dy;
    int images;

    __device__ __forceinline__ Row row(int n) const {
        const int image = n / W % images, h = n / W / images;
        return {h < H ? dy + image * (long long)(M * PIXELS) : nullptr, h, n % W};
    }
    __device__ __forceinline__ Step step(int k0, int i, int last) const {
        const Tap<M> tap(k0, i);
        return {tap.p, tap.q, k0 + i < last ? tap.map : -1};
    }
    __device__ __forceinline__ float at(Row row, Step step) const {
        const int down = row.h + PADDING - step.p, right = row.w + PADDING - step.q;
        const bool there = row.image && step.map >= 0 && down >= 0 && down <= (OH - 1) * S && right >= 0 &&
                           right <= (OW - 1) * S && down % S == 0 && right % S == 0;
        return there ? row.image[step.map * PIXELS + down / S * OW + right / S] : 0.0f;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    train_conv_input(const float *__restrict__ dy, const float *__restrict__ w, float *__restrict__ dx, int images) {
    const int pixels = H * images * W, first_pixel = blockIdx.x * BN;
    const int first_h = first_pixel / (images * W), last_h = min(first_pixel + BN - 1, pixels - 1) / (images * W);
    const int first_p = max(first_h + PADDING - (OH - 1) * S, 0);
    const int last_p = min(last_h + PADDING, K - 1);  // may be none
    const auto finish = [&](int channel, int n, const float *sums) {
        if (channel >= C || n >= pixels) return;
        const auto place = [&](int at) {
            const int image = at / W % images, h = at / W / images;
            return dx + ((image * (long long)C + channel) * H + h) * W + at % W;
        };
        if constexpr (W % 4 == 0) {
            store4(place(n), sums);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (n + j < pixels) *place(n + j) = sums[j];
        }
    };
    product(Filters{w}, Outputs{dy, images}, blockIdx.y * BM, first_pixel, first_p * K * M, (last_p + 1) * K * M,
            finish);
}
