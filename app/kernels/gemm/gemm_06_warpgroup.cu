// Matrix product, step 6: warpgroups. Warpgroups multiply from shared memory by wgmma, which Hopper cards alone have,
// while other warps copy the next pieces of both matrices there.
//
// What changed since step 4: warps have roles, consumers that multiply and producers that feed them, and only a ring of
// stages with barriers connects them (warpgroup_product.cuh). Outputs are the rows of the product and images its
// columns, so that a block may have any multiple of eight images: with 80, a batch of 10,000 is one block per SM.
// From: none of the systems.
// Data: x (images, INPUTS) INPUT; w packed (see warpgroup.py) float16; factors (OUTPUTS) from sums to values; bias (OUTPUTS) or
//       null; y (images, OUTPUTS) OUTPUT.
// Launch: a block for ROWS images and TILE outputs: a warpgroup for 64 outputs, and 128 producer threads.
// Bound by: what the L2 cache delivers: every block reads all weights.
constexpr int BARRIERS_AT = SHARED_BYTES - 16 * STAGES;
#include "warpgroup_product.cuh"
static_assert(BARRIERS_AT == RING_BYTES, "the row must lay memory out alike");

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
    if (t == CONSUMERS) begin_ring(w);
    __syncthreads();
    if (group == GROUPS) {
        if constexpr (THREADS >= 512) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        produce(x, w, rows, t - CONSUMERS);
    } else {
        if constexpr (THREADS >= 512) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        if (rows > FEW) consume<ROWS>(y, factors, bias, first, rows, t);
        else consume<FEW>(y, factors, bias, first, rows, t);
    }
}
