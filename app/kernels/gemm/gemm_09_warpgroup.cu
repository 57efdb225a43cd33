// Warpgroups multiply from shared memory by wgmma, which Hopper cards alone have, while other warps copy the next
// pieces of both matrices there.
//
// Data: x (images, INPUTS) INPUT; w packed (see warpgroup.py) float16; factors (OUTPUTS) from sums to values; bias (OUTPUTS) or
//       null; y (images, OUTPUTS) OUTPUT.
// Launch: a block for ROWS images and TILE outputs: a warpgroup for 64 outputs, and 128 producer threads.
#include "warpgroup_product.cuh"

struct SharedStorage {
    unsigned char stages[STAGES_BYTES];
    unsigned long long full[STAGES], empty[STAGES];  // barriers
};
__device__ __forceinline__ unsigned long long *full() { return shared_storage<SharedStorage>().full; }
__device__ __forceinline__ unsigned long long *empty() { return shared_storage<SharedStorage>().empty; }

template <int Columns>
__device__ __forceinline__ void consume(OUTPUT *y, const float *factors, const float *bias, int first, int rows, int t) {
    const int lane = t % 32, output = first + t / 32 * 16 + lane / 4;  // and eight more
    float sums[ROWS / 2];
    multiply<Columns>(sums, t);
#pragma unroll
    for (int i = 0; i < Columns / 2; i++) {
        const int o = output + i % 4 / 2 * 8, image = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (image >= rows || o >= OUTPUTS) continue;
        const float value = sums[i] * __ldg(factors + o) + (HAS_BIAS ? __ldg(bias + o) : 0.0f);
        y[(long long)image * OUTPUTS + o] = OUTPUT(ACTIVATION::of(value));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_warpgroup(const INPUT *__restrict__ x, const unsigned char *__restrict__ w, const float *__restrict__ factors,
                   const float *__restrict__ bias, OUTPUT *__restrict__ y, int images) {
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), t = threadIdx.x;
    const int image0 = blockIdx.x * ROWS, rows = min(ROWS, images - image0), first = blockIdx.y * TILE;
    x += (long long)image0 * INPUTS, y += (long long)image0 * OUTPUTS;
    w += (long long)blockIdx.y * STEPS * W_BYTES;
    if (t == CONSUMERS) begin_pipeline(w);
    __syncthreads();
    if (group == GROUPS) {
        if constexpr (THREADS >= 512) warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        produce(x, w, rows, t - CONSUMERS);
    } else {
        if constexpr (THREADS >= 512) warpgroup_reg_alloc<CONSUMER_REGISTERS>();
        if (rows > FEW) consume<ROWS>(y, factors, bias, first, rows, t);
        else consume<FEW>(y, factors, bias, first, rows, t);
    }
}
