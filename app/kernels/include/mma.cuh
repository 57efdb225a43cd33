// Tensor-core products of one warp, by PTX alone, and the loads that feed them; sm_80 and later.
//
// Lane = 4 * g + t. A is 16 x k, row by row; B is k x 8; A B is added to d, 16 x 8:
//   d[0], d[1] = row g, columns 2t, 2t + 1; d[2], d[3] = row g + 8, the same columns.
#pragma once

// k = 16, two float16 per register (the lower column or row in the lower half):
//   a[0] row g, columns 2t, 2t + 1; a[1] row g + 8; a[2] row g, columns 2t + 8, 2t + 9; a[3] row g + 8, those columns;
//   b[0] rows 2t, 2t + 1 of column g; b[1] rows 2t + 8, 2t + 9.
__device__ __forceinline__ void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// k = 8, one number from to_tf32 a register:
//   a[0] row g, column t; a[1] row g + 8, column t; a[2] row g, column t + 4; a[3] row g + 8, column t + 4;
//   b[0] row t of column g; b[1] row t + 4.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads four 8 x 8 float16 matrices from shared memory: a 16 x 16 tile as mma_f16's A, if lane i passes the address of
// row i % 16, column 8 * (i / 16). Addresses are multiples of 16.
__device__ __forceinline__ void ldmatrix(unsigned (&a)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

// The nearest tfloat32 (11 significant bits, ties away from zero), as an operand of mma_tf32.
__device__ __forceinline__ unsigned to_tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// Returns the nearest tfloat32; low: the tfloat32 nearest to the remainder.
__device__ __forceinline__ unsigned split_tf32(float value, unsigned &low) {
    const unsigned high = to_tf32(value);
    low = to_tf32(value - __uint_as_float(high));
    return high;
}

// Adds sums by ordinary additions, which round; tensor cores truncate.
template <int Rows, int Columns>
__device__ __forceinline__ void add(float (&sums)[Rows][Columns][4], const float (&others)[Rows][Columns][4]) {
#pragma unroll
    for (int i = 0; i < Rows * Columns * 4; i++)
        sums[i / 4 / Columns][i / 4 % Columns][i % 4] += others[i / 4 / Columns][i / 4 % Columns][i % 4];
}

// Count neighbours in memory, up to 16 bytes, loaded by one instruction.
template <typename T, int Count>
struct alignas(sizeof(T) * Count < 16 ? sizeof(T) * Count : 16) Vector {
    T at[Count];
};

// Count neighbours of a row of Length numbers, from a multiple of Count on; zeros beyond the row.
template <int Length, int Count, typename T>
__device__ __forceinline__ Vector<T, Count> neighbours(const T *row, int first, bool exists) {
    Vector<T, Count> found = {};
    if constexpr (Length % Count == 0) {
        if (exists && first < Length) found = *(const Vector<T, Count> *)(row + first);
    } else {
#pragma unroll
        for (int i = 0; i < Count; i++)
            if (exists && first + i < Length) found.at[i] = row[first + i];
    }
    return found;
}
