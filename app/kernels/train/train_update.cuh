// Shared by both optimisers: the L2 gradient, the sum of squares for the L2 loss, and decoupled weight decay. The
// parameters are one array, weights first; L2 and decay apply to the weights. With KEEP_ZEROS, weights that are zero
// stay zero. Every operation is rounded, as in NumPy.
#pragma once
#include "train_sum.cuh"

__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }

// One thread for each parameter. change: (gradient, index) → amount to subtract. squares: this block's sum of
// the weights' squares, before the update; only with L2.
template <typename Change>
__device__ __forceinline__ void update(float *parameters, const float *gradients, double *squares, int weights,
                                       int size, float l2, float keep, Change change) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    double square = 0;
    if (at < size) {
        float value = parameters[at], gradient = gradients[at];
        if (at < weights) {
            square = double(value) * value;
            if (HAS_L2) gradient = plus(gradient, times(l2, value));
            value = times(value, keep);
        }
        const float changed = plus(value, -change(gradient, at));
        parameters[at] = KEEP_ZEROS && at < weights && value == 0 ? value : changed;
    }
    if (HAS_L2) {
        square = block_sum(square);
        if (threadIdx.x == 0) squares[blockIdx.x] = square;
    }
}
