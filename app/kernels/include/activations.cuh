// The activations, named as -DACTIVATION names them. of(x): the value. times_slope(dy, y): dy times the slope where the
// value is y, rounded after each operation like the NumPy gradients. An unknown name does not compile.
#pragma once

struct NONE {
    template <typename T>
    static __device__ __forceinline__ T of(T x) { return x; }
    static __device__ __forceinline__ float times_slope(float dy, float y) { return dy; }
};

// max(x, 0), written so that NaN stays NaN: fmaxf would turn it into a plausible zero.
struct RELU {
    template <typename T>
    static __device__ __forceinline__ T of(T x) { return x < T(0) ? T(0) : x; }
    static __device__ __forceinline__ float times_slope(float dy, float y) { return dy * (y > 0 ? 1.0f : 0.0f); }
};

struct RELU6 {
    template <typename T>
    static __device__ __forceinline__ T of(T x) { return x < T(0) ? T(0) : x > T(6) ? T(6) : x; }
    static __device__ __forceinline__ float times_slope(float dy, float y) { return dy * (y > 0 && y < 6 ? 1.0f : 0.0f); }
};

// x, or slope * x below 0. The product is rounded, so that no kernel contracts it and a mean's sum into an FMA.
template <long long SlopeBits>
struct LEAKYRELU {
    static __device__ __forceinline__ double slope() { return __longlong_as_double(SlopeBits); }
    static __device__ __forceinline__ float of(float x) { return x < 0 ? __fmul_rn(float(slope()), x) : x; }
    static __device__ __forceinline__ double of(double x) { return x < 0 ? __dmul_rn(slope(), x) : x; }
    static __device__ __forceinline__ float times_slope(float dy, float y) { return dy * (y > 0 ? 1.0f : float(slope())); }
};

struct TANH {
    template <typename T>
    static __device__ __forceinline__ T of(T x) { return tanh(x); }
    static __device__ __forceinline__ float times_slope(float dy, float y) { return dy * __fsub_rn(1, __fmul_rn(y, y)); }
};

struct SIGMOID {
    template <typename T>
    static __device__ __forceinline__ T of(T x) { return T(1) / (T(1) + exp(-x)); }
    static __device__ __forceinline__ float times_slope(float dy, float y) { return dy * __fmul_rn(y, __fsub_rn(1, y)); }
};
