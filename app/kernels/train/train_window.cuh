// What training's convolutions share: the sizes of a layer, and where a window and its taps lie in an image.
//
// An image is (C, H, W), its output (M, OH, OW), filters are (K, K, C, M); S is the stride. No padding.
#pragma once
#include "train_product.cuh"

constexpr int OH = (H - K) / S + 1, OW = (W - K) / S + 1;
constexpr int PIXELS = OH * OW;  // of an output map
constexpr int TAPS = K * K * C;  // of a filter, numbered as (p, q, c)

// The tap and map that number k0 + step of (K, K, MAPS) is. Where whole slices have one tap, it is uniform.
template <int MAPS>
struct Tap {
    static constexpr bool TOGETHER = MAPS % BK == 0;  // k0 is then a multiple of BK
    int p, q, map;
    __device__ __forceinline__ Tap(int k0, int step) {
        const int at = TOGETHER ? k0 : k0 + step;
        p = at / MAPS / K, q = at / MAPS % K, map = at % MAPS + (TOGETHER ? step : 0);
    }
};

// The first element of output pixel n's window, pixels of all images numbered through.
__device__ __forceinline__ long long window_start(int n) {
    const int image = n / PIXELS, pixel = n % PIXELS;
    return image * (long long)(C * H * W) + (pixel / OW * W + pixel % OW) * S;
}

// How far behind its window's start a tap's element is.
template <int MAPS>
__device__ __forceinline__ int tap_offset(const Tap<MAPS> &tap) {
    return (tap.map * H + tap.p) * W + tap.q;
}
