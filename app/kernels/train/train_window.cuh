// Common parts of training's convolutions: the sizes of a layer, and the places of a window and its taps in an image.
//
// An image is (C, H, W), its output (M, OH, OW), filters are (K, K, C, M); S is the stride. PADDING rows and columns of
// zeros lie around the image, but not in memory: rows and columns count from the first of them.
#pragma once
#include "train_product.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
constexpr int PIXELS = OH * OW;  // per output map
constexpr int TAPS = K * K * C;  // per filter, numbered as (p, q, c)

// The tap and map with number k0 + step in (K, K, MAPS). If each slice has one tap, it is uniform.
template <int MAPS>
struct Tap {
    static constexpr bool TOGETHER = MAPS % BK == 0;  // k0 is then a multiple of BK
    int p, q, map;
    __device__ __forceinline__ Tap(int k0, int step) {
        const int at = TOGETHER ? k0 : k0 + step;
        p = at / MAPS / K, q = at / MAPS % K, map = at % MAPS + (TOGETHER ? step : 0);
    }
};

// Whether this row and column belong to the image and not to its padding.
__device__ __forceinline__ bool in_memory(int row, int column) {
    return is_pixel<PADDING>(row - PADDING, column - PADDING, H, W);
}

// The first row, first column and first element of output pixel n's window; n counts the pixels of all images.
__device__ __forceinline__ int window_row(int n) { return n % PIXELS / OW * S; }
__device__ __forceinline__ int window_column(int n) { return n % PIXELS % OW * S; }
__device__ __forceinline__ long long window_start(int n) {
    const int image = n / PIXELS, pixel = n % PIXELS;
    return image * (long long)(C * H * W) + (pixel / OW * W + pixel % OW) * S;
}

// The offset of a tap's element from its window's start.
template <int MAPS>
__device__ __forceinline__ int tap_offset(const Tap<MAPS> &tap) {
    return (tap.map * H + tap.p) * W + tap.q;
}
