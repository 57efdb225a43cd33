// half.cuh for the processor; without _Float16, which compilers know only since 2022.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

typedef unsigned int half2;
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline float of_half(unsigned bits) {
    static const std::vector<float> values = [] {
        std::vector<float> all(1 << 16);
        for (int i = 0; i < 1 << 16; i++) {
            const int exponent = i >> 10 & 31, fraction = i & 1023;
            const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                                              : std::ldexp(fraction + (exponent ? 1024.0f : 0.0f), std::max(exponent, 1) - 25);
            all[i] = i >> 15 ? -size : size;
        }
        return all;
    }();
    return values[bits & 0xFFFF];
}
// The nearest, ties to even.
inline unsigned short to_half(double value) {
    const unsigned sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(value);
    if (size != size) return sign | 0x7E00;
    if (size >= 65520) return sign | 0x7C00;
    const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
    return sign | (((exponent + 14) << 10) + (int)std::nearbyint(std::ldexp(size, 10 - exponent)));
}
struct float16 {
    unsigned short bits;
    float16() = default;
    explicit float16(float value) : bits(to_half(value)) {}
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
    auto each = [](float x, float y, float z) { return to_half(double(x) * double(y) + double(z)); };
    const unsigned high = each(high_half(a), high_half(b), high_half(c));
    return each(low_half(a), low_half(b), low_half(c)) | high << 16;
}
