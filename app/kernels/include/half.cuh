// Half precision in memory and in pairs, by PTX alone, so that no header of a CUDA toolkit is needed at run time.
#pragma once

// One half-precision number in memory; it is converted to float for arithmetic.
struct float16 {
    unsigned short bits;
    float16() = default;
    __device__ __forceinline__ explicit float16(float value) {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    }
    __device__ __forceinline__ operator float() const {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
};

// Two half-precision numbers in one register: low in the lower 16 bits.
typedef unsigned int half2;

__device__ __forceinline__ half2 pack_half2(float16 low, float16 high) { return low.bits | unsigned(high.bits) << 16; }

__device__ __forceinline__ half2 pack_half2(float low, float high) {
#if __CUDA_ARCH__ >= 800
    half2 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return pack_half2(float16(low), float16(high));
#endif
}

__device__ __forceinline__ float16 low_half(half2 pair) {
    float16 value;
    value.bits = (unsigned short)(pair & 0xffff);
    return value;
}

__device__ __forceinline__ float16 high_half(half2 pair) {
    float16 value;
    value.bits = (unsigned short)(pair >> 16);
    return value;
}

// a * b + c for both halves, each rounded once.
__device__ __forceinline__ half2 fused_multiply_add(half2 a, half2 b, half2 c) {
    half2 result;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

__device__ __forceinline__ half2 add(half2 a, half2 b) {
    half2 sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

__device__ __forceinline__ half2 subtract(half2 a, half2 b) {
    half2 difference;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}

// a + b for both halves, saturated to 0 … 1; NaN becomes 0.
__device__ __forceinline__ half2 add_saturated(half2 a, half2 b) {
    half2 sum;
    asm("add.rn.sat.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

// Converts two of four bytes to float16; as bits, 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ half2 to_half2(unsigned bytes, int which) {
    return subtract(__byte_perm(bytes, 0x64646464, which), 0x64006400);
}

// max(a, 0) for both halves, as fast as a multiplication (sm_80 and later).
__device__ __forceinline__ half2 relu(half2 a) {
    half2 result;
    asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(0x3c003c00), "r"(0x80008000));
    return result;
}

// Rounds two numbers to float16, negative ones to zero (sm_80 and later).
__device__ __forceinline__ half2 pack_relu(float low, float high) {
    half2 pair;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Splits two float32 into two float16 each: returns the high halves; low: the remainders times ``scale``.
__device__ __forceinline__ half2 split_half2(float a, float b, half2 &low, float scale) {
    const half2 high = pack_half2(a, b);
    low = pack_half2(scale * (a - float(low_half(high))), scale * (b - float(high_half(high))));
    return high;
}
