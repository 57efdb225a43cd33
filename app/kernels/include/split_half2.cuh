// Numbers of float32 as the sum of two float16.
#pragma once
#include "half.cuh"

// Two of them: returns the high halves; low: what is left of them, times ``scale``.
__device__ __forceinline__ half2 split_half2(float a, float b, half2 &low, float scale) {
    const half2 high = pack_half2(a, b);
    low = pack_half2(scale * (a - float(low_half(high))), scale * (b - float(high_half(high))));
    return high;
}
