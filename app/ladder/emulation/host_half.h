// C++ versions of the PTX functions of half.cuh, without _Float16, which compilers before 2022 do not have.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// Returns four bytes; each hexadecimal digit of the selector names one: 0 to 3 of a, 4 to 7 of b.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long both = a | (unsigned long long)b << 32;
    unsigned found = 0;
    for (int i = 0; i < 4; i++) found |= unsigned(both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
    return found;
}

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
// Returns the nearest float16, ties to even.
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

// Returns two packed float16: each(0) and each(16), double values, each rounded once. The argument is a bit position.
template <typename Each>
inline unsigned each_half(Each each) { return to_half(each(0)) | unsigned(to_half(each(16))) << 16; }
inline unsigned pack_half2(float low, float high) {
    return each_half([=](int at) { return at ? high : low; });
}
inline unsigned fused_multiply_add(unsigned a, unsigned b, unsigned c) {
    return each_half([=](int at) { return double(of_half(a >> at)) * of_half(b >> at) + of_half(c >> at); });
}
inline unsigned add(unsigned a, unsigned b) {
    return each_half([=](int at) { return double(of_half(a >> at)) + of_half(b >> at); });
}
inline unsigned subtract(unsigned a, unsigned b) {
    return each_half([=](int at) { return double(of_half(a >> at)) - of_half(b >> at); });
}
inline unsigned add_saturated(unsigned a, unsigned b) {
    return each_half([=](int at) {
        const double sum = double(of_half(a >> at)) + of_half(b >> at);
        return sum > 0 ? std::min(sum, 1.0) : 0.0;  // also for NaN
    });
}
inline double positive(double value) { return value < 0 ? 0 : value; }
inline unsigned relu(unsigned a) {
    return each_half([=](int at) { return positive(of_half(a >> at)); });
}
inline unsigned pack_relu(float low, float high) {
    return each_half([=](int at) { return positive(at ? high : low); });
}
