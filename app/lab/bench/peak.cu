// Measures the card's peak arithmetic rate, by independent chains of multiply-adds in registers.
//
// From: no seed system; it measures the peak of "% of peak".
// Data: out is written only if a sum has an impossible value, so that the compiler removes nothing.
// Launch: any number of blocks of 256 threads that do `rounds` rounds; each thread (FMA, HFMA2) or warp (F16, TF32) has
//         CHAINS sums; a warpgroup (WGMMA) has one matrix of them, and operands in shared memory.
// Bound by: arithmetic, by construction.
#if defined(WGMMA)
#include "wgmma.cuh"
#else
#include "mma.cuh"
constexpr int CHAINS = 8;
#endif
constexpr int UNROLL = 16;

#if defined(FMA)
// 2 * CHAINS * UNROLL operations per round and thread.
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
#elif defined(HFMA2)
// 4 * CHAINS * UNROLL operations per round and thread: both halves of a register.
extern "C" __global__ void __launch_bounds__(256) peak(float *out, float, float, int rounds) {
    unsigned sums[CHAINS];
    const unsigned a = 0x38003800u, b = 0x3c003c00u;  // 0.5 and 1, twice
#pragma unroll
    for (int i = 0; i < CHAINS; i++) sums[i] = 0x38003800u + (threadIdx.x + i) * 0x10001u;
#pragma unroll 1
    for (int round = 0; round < rounds; round++)
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int i = 0; i < CHAINS; i++)
                asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(sums[i]) : "r"(a), "r"(b));
#pragma unroll
    for (int i = 1; i < CHAINS; i++) sums[0] ^= sums[i];
    if (sums[0] == 0x12345678u) out[threadIdx.x] = 1.0f;
}
#elif defined(WGMMA)
// 2 * 64 * 256 * 16 * UNROLL operations per round and warpgroup.
extern "C" __global__ void __launch_bounds__(256) peak(float *out, float, float, int rounds) {
    __shared__ __align__(128) unsigned operands[(64 + 256) * 16 / 2];  // A, then B, in core matrices
    for (int i = threadIdx.x; i < (64 + 256) * 16 / 2; i += 256) operands[i] = 0x38003800u + i % 256 * 0x10001u;
    fence_proxy_async();
    __syncthreads();
    const unsigned address = shared_address(operands);
    const unsigned long long a = make_smem_desc(address, 1024, 128), b = make_smem_desc(address + 2048, 4096, 128);
    float sums[128] = {};
#pragma unroll 1
    for (int round = 0; round < rounds; round++) {
        wgmma_fence();
#pragma unroll
        for (int u = 0; u < UNROLL; u++) wgmma_f16(sums, a, b, false);
        wgmma_commit_group();
        wgmma_wait_group(sums);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 128; i++) sum += sums[i];
    if (sum == -1.0f) out[threadIdx.x] = sum;
}
#else
// 2 * 16 * 8 * k * CHAINS * UNROLL operations per round and warp; k = 16 for F16, 8 for TF32.
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
