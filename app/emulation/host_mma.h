// mma.cuh for the processor: one warp's tensor-core products as Hopper sums them.
//
// The terms of a sum are exact. Beside the greatest of them, and of what was there before, they are cut off two bits
// below float32's last, and so is their sum behind float32's last.
#pragma once
#include "half.cuh"

template <typename T>
inline T __ldg(const T *place) {
    if ((uintptr_t)place % alignof(T)) host::fail("loads from an address that is no multiple of the type's size");
    return *place;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float fast_exp2(float x) { return std::exp2(x); }
inline float greater(float a, float b) { return a != a || a > b ? a : b; }

namespace host {
inline double cut(double value, double unit) { return std::trunc(value / unit) * unit; }

// One element of d: what it was, and its products.
template <int Count>
inline float grown(const double (&terms)[Count]) {
    double most = 0, plain = 0;
    for (double term : terms) most = max(most, std::fabs(term)), plain += term;
    if (!std::isfinite(plain)) return (float)plain;
    if (most == 0) return 0;
    const double last = std::ldexp(1.0, std::ilogb(most) - 25);
    double sum = 0;
    for (double term : terms) sum += cut(term, last);
    return sum == 0 ? 0 : (float)cut(sum, std::ldexp(1.0, max(std::ilogb(sum), -126) - 23));
}
}  // namespace host

// As in mma.cuh: lane = 4 g + t.
inline void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    struct Operands {
        float a[2][2][2], b[2][2];  // row g or g + 8, half of k, pair; half of k, pair
    };
    static Operands all[1024];
    const int lane = threadIdx.x % 32;
    Operands *warp = all + threadIdx.x / 32 * 32, &own = warp[lane];
    for (int half = 0; half < 2; half++)
        for (int pair = 0; pair < 2; pair++) {
            for (int row = 0; row < 2; row++) own.a[row][half][pair] = of_half(a[2 * half + row] >> 16 * pair);
            own.b[half][pair] = of_half(b[half] >> 16 * pair);
        }
    host::wait(host::OF_WARP);
    for (int at = 0; at < 4; at++) {
        double terms[17] = {d[at]};
        for (int k = 0; k < 16; k++) {
            const int half = k / 8, t = k % 8 / 2, pair = k % 2;
            terms[1 + k] = double(warp[lane / 4 * 4 + t].a[at / 2][half][pair]) *
                           warp[(lane % 4 * 2 + at % 2) * 4 + t].b[half][pair];
        }
        d[at] = host::grown(terms);
    }
    host::wait(host::OF_WARP);
}

// The nearest tfloat32, ties away from zero.
inline unsigned to_tf32(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return value != value || std::isinf(value) ? bits : (bits + 0x1000) & 0xFFFFE000;
}

inline void mma_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    struct Operands {
        float a[4], b[2];
    };
    static Operands all[1024];
    const int lane = threadIdx.x % 32;
    Operands *warp = all + threadIdx.x / 32 * 32, &own = warp[lane];
    for (int i = 0; i < 4; i++) own.a[i] = __int_as_float(a[i]);
    for (int i = 0; i < 2; i++) own.b[i] = __int_as_float(b[i]);
    host::wait(host::OF_WARP);
    for (int at = 0; at < 4; at++) {
        double terms[9] = {d[at]};
        for (int k = 0; k < 8; k++)
            terms[1 + k] = double(warp[lane / 4 * 4 + k % 4].a[at / 2 + k / 4 * 2]) *
                           warp[(lane % 4 * 2 + at % 2) * 4 + k % 4].b[k / 4];
        d[at] = host::grown(terms);
    }
    host::wait(host::OF_WARP);
}

// Neighbours in memory, as in mma.cuh.
template <typename T, int Count>
struct alignas(sizeof(T) * Count < 16 ? sizeof(T) * Count : 16) Vector {
    T at[Count];
};
template <int Length, int Count, typename T>
inline Vector<T, Count> neighbours(const T *row, int first, bool exists) {
    Vector<T, Count> found = {};
    if constexpr (Length % Count == 0) {
        if (exists && first < Length) found = *(const Vector<T, Count> *)(row + first);
    } else {
        for (int i = 0; i < Count; i++)
            if (exists && first + i < Length) found.at[i] = row[first + i];
    }
    return found;
}
