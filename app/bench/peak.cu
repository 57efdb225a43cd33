// What the card can do at most, in registers: chains of multiply-adds that are independent of one another.
//
// From: no seed system; it is the yardstick of "% of peak".
// Data: out is written only if a sum has a value that it cannot have, so that nothing is optimised away.
// Launch: any number of blocks of 256 threads; each thread (FMA) or warp (MMA) has CHAINS sums and does `rounds` rounds.
// Bound by: arithmetic, by construction.
#include "mma.cuh"

constexpr int CHAINS = 8, UNROLL = 16;

#if defined(FMA)
// 2 * CHAINS * UNROLL operations a round and thread.
extern "C" __global__ void __launch_bounds__(256) peak(float *out, float a, float b, int rounds) {
    float sums[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; i++) sums[i] = threadIdx.x + i;
#pragma unroll 1
    for (int round = 0; round < rounds; round++)
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int i = 0; i < CHAINS; i++) sums[i] = fmaf(sums[i], a, b);
#pragma unroll
    for (int i = 1; i < CHAINS; i++) sums[0] += sums[i];
    if (sums[0] == -1.0f) out[threadIdx.x] = sums[0];
}
#else
// 2 * 16 * 8 * k * CHAINS * UNROLL operations a round and warp; k = 16 for F16, 8 for TF32.
extern "C" __global__ void __launch_bounds__(256) peak(float *out, float, float, int rounds) {
    float sums[CHAINS][4] = {};
    const unsigned bits = 0x38003800u + threadIdx.x * 0x10001u;  // not zeros, which cost less power
    const unsigned a[4] = {bits, bits, bits, bits}, b[2] = {bits, bits};
#pragma unroll 1
    for (int round = 0; round < rounds; round++)
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int i = 0; i < CHAINS; i++)
#if defined(F16)
                mma_f16(sums[i], a, b);
#else
                mma_tf32(sums[i], a, b);
#endif
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum += sums[i][j];
    if (sum == -1.0f) out[threadIdx.x] = sum;
}
#endif
