// An activation to the precision of what is stored.
#pragma once
#include "common.cuh"

// Rounded: to float16 or fewer bits, else to float32.
template <typename F, bool Rounded>
__device__ __forceinline__ float activate(float x) {
    if constexpr (Rounded && same_type<F, TANH>) {
        const float e = fast_exp2(-2.885390082f * fabsf(x));
        return copysignf(__fdividef(1.0f - e, 1.0f + e), x);
    } else if constexpr (Rounded && same_type<F, SIGMOID>) {
        return __fdividef(1.0f, 1.0f + fast_exp2(-1.442695041f * x));
    } else {
        return F::of(x);
    }
}
