// half.cuh for the processor.
#pragma once
#include <cstring>

typedef unsigned int half2;
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline float of_half(unsigned bits) {
    const unsigned short low = (unsigned short)bits;
    _Float16 value;
    std::memcpy(&value, &low, 2);
    return (float)value;
}
struct float16 {
    unsigned short bits;
    float16() = default;
    explicit float16(float value) {
        const _Float16 narrow = (_Float16)value;
        std::memcpy(&bits, &narrow, 2);
    }
    operator float() const { return of_half(bits); }
};
inline half2 pack_half2(float16 low, float16 high) { return low.bits | unsigned(high.bits) << 16; }
inline half2 pack_half2(float low, float high) { return pack_half2(float16(low), float16(high)); }
inline float16 low_half(half2 pair) {
    float16 value;
    value.bits = (unsigned short)pair;
    return value;
}
inline float16 high_half(half2 pair) { return low_half(pair >> 16); }
inline half2 fused_multiply_add(half2 a, half2 b, half2 c) {  // in double, exact but for one rounding
    auto each = [](float x, float y, float z) {
        const _Float16 narrow = (_Float16)(double(x) * double(y) + double(z));
        float16 value;
        std::memcpy(&value.bits, &narrow, 2);
        return value;
    };
    return pack_half2(each(low_half(a), low_half(b), low_half(c)), each(high_half(a), high_half(b), high_half(c)));
}
