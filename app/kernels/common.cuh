// Shared by every kernel: the element types that -D options name, and the arithmetic of the epilogues.
//
// Fused and separate routes call the same functions in the same order, so they agree to the bit.
#pragma once

typedef unsigned char uint8;
typedef float float32;
typedef double float64;

// A fused multiply-add whatever the element type: one rounding per term, in the order of the loop.
__device__ __forceinline__ float fused_multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused_multiply_add(double a, double b, double c) { return fma(a, b, c); }

// max(value, 0), written so that NaN stays NaN: fmaxf would turn it into a plausible zero.
template <typename T>
__device__ __forceinline__ T relu(T value) {
    return value < T(0) ? T(0) : value;
}

template <bool WithBias, bool WithRelu, typename T>
__device__ __forceinline__ T bias_relu(T value, T bias) {
    if (WithBias) value += bias;
    return WithRelu ? relu(value) : value;
}

// Pooling over a window of Count values, taken row by row.
template <bool Max, typename T>
__device__ __forceinline__ T pool_step(T so_far, T value) {
    if (!Max) return so_far + value;
    return (value > so_far || value != value) ? value : so_far;  // NaN wins, as in NumPy
}

template <bool Max, int Count, typename T>
__device__ __forceinline__ T pool_finish(T so_far) {
    return Max ? so_far : so_far / T(Count);
}

// Whether (value, index) beats the best so far: the greater value, then the lower index; NaN beats numbers.
template <typename T>
__device__ __forceinline__ bool wins(T value, int index, T best, int best_index) {
    const bool value_nan = value != value, best_nan = best != best;
    if (value_nan || best_nan) return value_nan && (!best_nan || index < best_index);
    return value > best || (value == best && index < best_index);
}
