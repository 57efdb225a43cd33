// An activation to the precision of what is stored: of float16 (PARTS 1) or float32.
#pragma once
#include "common.cuh"

template <typename F>
__device__ __forceinline__ float activate(float x) {
    if constexpr (PARTS == 1 && same_type<F, TANH>) {
        const float e = fast_exp2(-2.885390082f * fabsf(x));
        return copysignf(__fdividef(1.0f - e, 1.0f + e), x);
    } else if constexpr (PARTS == 1 && same_type<F, SIGMOID>) {
        return __fdividef(1.0f, 1.0f + fast_exp2(-1.442695041f * x));
    } else {
        return F::of(x);
    }
}
