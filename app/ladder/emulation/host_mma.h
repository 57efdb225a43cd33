// C++ versions of the PTX functions of mma.cuh: a warp's tensor-core products, added as Hopper adds them.
//
// The products are exact. Hopper aligns them and the previous sum with the largest of all, truncates each two bits below the
// last bit of float32, adds them, and truncates the sum to float32.
#pragma once
#include "half.cuh"

namespace host {
inline int exponent_bits(double value) {
    unsigned long long bits;
    std::memcpy(&bits, &value, 8);
    return bits >> 52 & 0x7FF;
}
inline double power_of_two(int exponent) {
    const unsigned long long bits = (unsigned long long)(exponent + 1023) << 52;
    double value;
    std::memcpy(&value, &bits, 8);
    return value;
}

// Returns the sum of the terms (the previous sum and at most 32 products), truncated as Hopper does.
template <int Count>
inline float truncated_sum(const double (&terms)[Count]) {
    int greatest = 0;
    for (double term : terms) greatest = max(greatest, exponent_bits(term));
    if (greatest == 0) return 0;
    if (greatest == 0x7FF) {
        double plain = 0;
        for (double term : terms) plain += term;
        return (float)plain;
    }
    const int last = greatest - 1023 - 25;
    const double scale = power_of_two(-last);
    int sum = 0;  // in units of the last bit kept; the conversion truncates
    for (double term : terms) sum += (int)(term * scale);
    if (sum == 0) return 0;
    const double value = sum * power_of_two(last);
    const double unit = power_of_two(max(exponent_bits(value) - 1023, -126) - 23);
    return float((long long)(value / unit) * unit);
}

// d += a b, a sum of ``Terms`` terms. value(word, position) decodes a number in a word. Lane = 4 g + t, as in mma.cuh.
template <int Terms, typename Value>
inline void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Value value) {
    constexpr int PLACES = Terms / 8;
    struct Operands {
        float a[4][PLACES], b[2][PLACES];
    };
    static Operands all[MOST_THREADS];
    const int lane = number() % 32;
    Operands *warp = all + number() - lane;
    for (int place = 0; place < PLACES; place++) {
        for (int i = 0; i < 4; i++) warp[lane].a[i][place] = value(a[i], place);
        for (int i = 0; i < 2; i++) warp[lane].b[i][place] = value(b[i], place);
    }
    wait(OF_WARP);
    for (int at = 0; at < 4; at++) {
        double terms[1 + Terms] = {d[at]};
        for (int k = 0; k < Terms; k++) {
            const int half = k / (Terms / 2), t = k % (Terms / 2) / PLACES, place = k % PLACES;
            terms[1 + k] = double(warp[lane / 4 * 4 + t].a[at / 2 + 2 * half][place]) *
                           warp[(lane % 4 * 2 + at % 2) * 4 + t].b[half][place];
        }
        d[at] = truncated_sum(terms);
    }
    wait(OF_WARP);
}
}  // namespace host

inline void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    host::mma<16>(d, a, b, [](unsigned word, int place) { return of_half(word >> 16 * place); });
}

// Returns the nearest tfloat32, ties away from zero.
inline unsigned to_tf32(float value) {
    const unsigned bits = __float_as_uint(value);
    return value != value || std::isinf(value) ? bits : (bits + 0x1000) & 0xFFFFE000;
}

inline void mma_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    host::mma<8>(d, a, b, [](unsigned word, int) { return __uint_as_float(word); });
}

// Loads four 8 x 8 matrices; the pointers of lanes 8 j to 8 j + 7 are the rows of matrix j.
inline void ldmatrix(unsigned (&a)[4], const void *row) {
    static const void *all[host::MOST_THREADS];
    if ((uintptr_t)row % 16) host::fail("loads a matrix from an address that is no multiple of 16");
    const int number = host::number(), lane = number % 32;
    all[number] = row;
    host::wait(host::OF_WARP);
    for (int j = 0; j < 4; j++) std::memcpy(&a[j], (const char *)all[number - lane + 8 * j + lane / 4] + lane % 4 * 4, 4);
    host::wait(host::OF_WARP);
}
