// C++ versions of the CUDA functions that kernels call, and of the PTX functions of common.cuh.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "host_threads.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("shared_arrays")))

#include "half.cuh"

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Only one thread runs at a time, and these do not pause before stores, so each function is atomic.
template <typename T>
[[gnu::no_sanitize("kernel-address"), gnu::noinline]] T atomicAdd(T *place, T value) {
    const T before = *place;
    *place = before + value;
    return before;
}
template <typename T>
[[gnu::no_sanitize("kernel-address"), gnu::noinline]] T atomicMax(T *place, T value) {
    const T before = *place;
    *place = before < value ? value : before;
    return before;
}

using std::exp;
using std::fma;
using std::max;
using std::min;
using std::tanh;

inline float __int_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline float __uint_as_float(unsigned bits) { return __int_as_float(bits); }
inline double __longlong_as_double(long long bits) {
    double value;
    std::memcpy(&value, &bits, 8);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
// The compiler contracts nothing (-ffp-contract=off), so every operation is rounded separately.
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }

template <typename T>
inline T __ldg(const T *place) {
    if ((uintptr_t)place % alignof(T)) host::fail("loads from an address that is no multiple of the type's size");
    return *place;
}
template <typename T>
inline T __ldcg(const T *place) { return __ldg(place); }

// common.cuh
inline float fast_exp2(float x) { return std::exp2(x); }
inline float greater(float a, float b) { return a != a || a > b ? a : b; }
template <int Count, typename T>
inline void store_aligned(T *y, const float *values) {
    if ((uintptr_t)y % min<int>(Count * sizeof(T), 16))
        host::fail("stores several outputs at once at an address that is no multiple");
    for (int i = 0; i < Count; i++) y[i] = T(values[i]);
}
template <typename T>
inline void store2(T *y, const float *values) { store_aligned<2>(y, values); }
template <typename T>
inline void store4(T *y, const float *values) { store_aligned<4>(y, values); }
template <typename T>
inline void store8(T *y, const float *values) { store_aligned<8>(y, values); }

inline void __syncthreads() { host::wait(host::OF_BLOCK); }
inline void __syncwarp(unsigned mask = ~0u) { host::wait(host::OF_WARP, mask); }

// Returns the value of lane from(lane); all lanes of the mask must call it.
template <typename T, typename Lane>
inline T host_shuffle(unsigned mask, T value, Lane from) {
    static T left[host::MOST_THREADS];
    const int own = host::number();
    left[own] = value;
    host::wait(host::OF_WARP, mask);
    const T found = left[own / 32 * 32 + from(own % 32)];
    host::wait(host::OF_WARP, mask);
    return found;
}
template <typename T>
inline T __shfl_sync(unsigned mask, T value, int lane) {
    return host_shuffle(mask, value, [=](int) { return lane; });
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int apart) {
    return host_shuffle(mask, value, [=](int lane) { return lane ^ apart; });
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, int apart, int width = 32) {
    return host_shuffle(mask, value, [=](int lane) { return lane % width + apart < width ? lane + apart : lane; });
}

// Returns an address in shared memory: the offset, and in the upper bits the block's number in its cluster.
inline unsigned __cvta_generic_to_shared(const void *place) {
    const auto offset = (const unsigned char *)place - host::shared;
    if (offset < 0 || offset > (std::ptrdiff_t)host::all_shared->bytes)
        host::fail("takes a place outside the block's shared memory for one in it");
    return host::current->block->rank << 24 | unsigned(offset);
}
