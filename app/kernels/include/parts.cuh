// Sums of DEPTH terms in parts of PART terms: each part is summed by itself from zero, then the parts are added in
// their order. Kernels that compute the parts one after another, or in many blocks at once, then agree to the bit.
#pragma once
#include "common.cuh"

constexpr int PARTS = (DEPTH + PART - 1) / PART;

// Called after `terms` terms: at the end of a part, adds its sums to the totals and clears them. Sums: a float array.
template <typename Sums>
__device__ __forceinline__ void end_part(Sums &totals, Sums &sums, int terms) {
    if (terms % PART != 0 && terms < DEPTH) return;
#pragma unroll
    for (int i = 0; i < int(sizeof(Sums) / sizeof(float)); i++) {
        ((float *)&totals)[i] += ((float *)&sums)[i];
        ((float *)&sums)[i] = 0;
    }
}

// One thread per element of y (rows, N): adds its parts (rows, PARTS, N), then bias and activation.
__device__ __forceinline__ void finish_parts(const float *__restrict__ parts, const float *__restrict__ bias,
                                             OUTPUT *__restrict__ y, int rows) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at >= (long long)rows * N) return;
    const int n = at % N;
    const float *part = parts + at / N * PARTS * N + n;
    float sum = 0;
#pragma unroll 16
    for (int i = 0; i < PARTS; i++) sum += part[(long long)i * N];
    y[at] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[n] : 0.0f));
}
