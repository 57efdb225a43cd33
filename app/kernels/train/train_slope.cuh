// The slopes of ReLU, tanh and sigmoid follow from their outputs. Rounded step by step, as the NumPy gradients are.
#pragma once
#include "common.cuh"

// dy times the slope where the function gave y.
template <Activation Function>
__device__ __forceinline__ float times_slope(float dy, float y) {
    if (Function == RELU) return dy * (y > 0 ? 1.0f : 0.0f);
    if (Function == TANH) return dy * __fsub_rn(1, __fmul_rn(y, y));
    if (Function == SIGMOID) return dy * __fmul_rn(y, __fsub_rn(1, y));
    return dy;
}
