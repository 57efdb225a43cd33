// Shared by every kernel: the element types that -D options name, and the arithmetic of the epilogues.
//
// INPUT, WEIGHT and OUTPUT are the types of x, w and y in memory; REAL, float32 or float64, is that of sums, bias and
// epilogue. Fused and separate layers call the same functions in the same order, so their results agree to the bit.
#pragma once
#include "activations.cuh"
#include "half.cuh"

typedef unsigned char uint8;
typedef float float32;
typedef double float64;

template <typename T, typename U>
constexpr bool same_type = false;
template <typename T>
constexpr bool same_type<T, T> = true;

// A fused multiply-add for each element type, with one rounding.
__device__ __forceinline__ float fused_multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused_multiply_add(double a, double b, double c) { return fma(a, b, c); }

// The greater of two numbers; NaN wins (sm_80 and later).
__device__ __forceinline__ float greater(float a, float b) {
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

// 2 to the power x, to about 22 bits.
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// An activation to the precision that is stored: float16 or less if Rounded, else float32.
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

// Whether (row, column) is a pixel of the image, height x width, and not padding. Always true without padding: kernels
// then read only pixels, or check the borders themselves.
template <int Padding>
__device__ __forceinline__ bool is_pixel(int row, int column, int height, int width) {
    return Padding == 0 || (unsigned(row) < unsigned(height) && unsigned(column) < unsigned(width));
}

// Adds the bias and applies Function, one of activations.cuh.
template <bool WithBias, typename Function, typename T>
__device__ __forceinline__ T epilogue(T sum, T bias) {
    return Function::of(WithBias ? sum + bias : sum);
}

// Along one axis: how many of the Window pixels of window `at` lie inside an image of Size pixels. A compile-time
// Window unless the last of the Count windows reaches over the border.
template <int Window, int Stride, int Count, int Size>
__device__ __forceinline__ int pixels_inside(int at) {
    return (Count - 1) * Stride + Window <= Size ? Window : min(Window, Size - at * Stride);
}

// Adds one value to a window's maximum or sum; windows are pooled row by row.
template <bool Max, typename T>
__device__ __forceinline__ T pool_step(T so_far, T value) {
    if (!Max) return so_far + value;
    return (value > so_far || value != value) ? value : so_far;  // NaN wins, as in NumPy
}

// Returns the pooled value. count: number of values in the window.
template <bool Max, typename T>
__device__ __forceinline__ T pool_finish(T so_far, int count) {
    return Max ? so_far : so_far / T(count);
}

// Pools window (row, column) of a map of Height x Width pixels with Rows x Columns windows. values: the window's first
// value; its rows are `stride` apart.
template <int Pool, bool Max, int Rows, int Columns, int Height, int Width>
__device__ __forceinline__ float pool_window(int row, int column, const float *values, int stride) {
    const int rows = pixels_inside<Pool, Pool, Rows, Height>(row);
    const int columns = pixels_inside<Pool, Pool, Columns, Width>(column);
    float pooled = values[0];
#pragma unroll
    for (int i = 1; i < Pool * Pool; i++)
        if (i / Pool < rows && i % Pool < columns) pooled = pool_step<Max>(pooled, values[i / Pool * stride + i % Pool]);
    return pool_finish<Max>(pooled, rows * columns);
}

// A table of Count elements for constant memory: element k is Entry(k).
template <int Count, int (*Entry)(int)>
struct Table {
    int at[Count];
    __host__ __device__ constexpr Table() : at() {
        for (int k = 0; k < Count; k++) at[k] = Entry(k);
    }
};

// Whether (value, index) beats the best so far: the greater value, then the lower index; NaN beats numbers.
template <typename T>
__device__ __forceinline__ bool wins(T value, int index, T best, int best_index) {
    const bool value_nan = value != value, best_nan = best != best;
    if (value_nan || best_nan) return value_nan && (!best_nan || index < best_index);
    return value > best || (value == best && index < best_index);
}

// Reduces (value, index) over every Width neighbouring lanes; the first of them gets the best.
template <int Width>
__device__ __forceinline__ void find_best_of_lanes(float &best, int &index) {
#pragma unroll
    for (int apart = Width / 2; apart > 0; apart /= 2) {
        const float other = __shfl_down_sync(0xffffffff, best, apart, Width);
        const int other_index = __shfl_down_sync(0xffffffff, index, apart, Width);
        if (wins(other, other_index, best, index)) best = other, index = other_index;
    }
}

// Store two, four or eight neighbouring outputs at once, at a multiple of as many elements. They use PTX, because the
// compiler splits the assignment of a vector.
__device__ __forceinline__ void store2(float *y, const float *values) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(y), "f"(values[0]), "f"(values[1]) : "memory");
}
__device__ __forceinline__ void store4(float *y, const float *values) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(y), "f"(values[0]), "f"(values[1]), "f"(values[2]),
                 "f"(values[3])
                 : "memory");
}
__device__ __forceinline__ void store2(float16 *y, const float *values) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(y), "r"(pack_half2(values[0], values[1])) : "memory");
}
__device__ __forceinline__ void store8(float *y, const float *values) { store4(y, values), store4(y + 4, values + 4); }
__device__ __forceinline__ void store8(float16 *y, const float *values) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(y), "r"(pack_half2(values[0], values[1])),
                 "r"(pack_half2(values[2], values[3])), "r"(pack_half2(values[4], values[5])),
                 "r"(pack_half2(values[6], values[7]))
                 : "memory");
}
__device__ __forceinline__ void store4(float16 *y, const float *values) {
    const half2 low = pack_half2(values[0], values[1]), high = pack_half2(values[2], values[3]);
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(y), "r"(low), "r"(high) : "memory");
}
template <typename T, int Count>
__device__ __forceinline__ void store_run(T *y, const float (&values)[Count]) {
    if constexpr (Count == 8) store8(y, values);
    else if constexpr (Count == 4) store4(y, values);
    else store2(y, values);
}
