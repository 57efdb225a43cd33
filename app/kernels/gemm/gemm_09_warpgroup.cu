// Warpgroups multiply from shared memory by wgmma, which Hopper cards alone have, while other warps copy the next
// pieces of both matrices to shared memory.
//
// Data: x (images, INPUTS) INPUT; w packed (see warpgroup.py) float16; factors (OUTPUTS) from sums to values; bias (OUTPUTS) or
//       null; y (images, OUTPUTS) OUTPUT, with SOFTMAX that of each image; with ARGMAX also labels (images) uint8: the
//       greatest of up to 16 stored values;
//       with several SLICES workspace slices (images, SLICES, OUTPUTS) float.
// Launch: a block for ROWS images and TILE outputs: a warpgroup for 64 outputs, and 128 producer threads. Of few images,
//         blockIdx.z = slice of a long sum; then one thread per element of y adds the slices.
#include "row_softmax.cuh"
#include "warpgroup_product.cuh"

struct SharedStorage {
    unsigned char stages_and_totals[STAGES_BYTES + (SHARED_TOTALS ? 4 * TILE * ROWS : 0)];
    unsigned long long full[STAGES], empty[STAGES];  // barriers
};
__device__ __forceinline__ unsigned long long *full() { return shared_storage<SharedStorage>().full; }
__device__ __forceinline__ unsigned long long *empty() { return shared_storage<SharedStorage>().empty; }

template <int Columns>
__device__ __forceinline__ void consume(OUTPUT *y, uint8 *labels, const float *factors, const float *bias, int first,
                                        int rows, int t) {
    const int lane = t % 32, output = first + t / 32 * 16 + lane / 4;  // and that + 8
    float sums[ROWS / 2];
    multiply<Columns, ROWS>(sums, t, KStep());
#pragma unroll
    for (int j = 0; j < Columns / 4; j++) {
        const int image = j / 2 * 8 + lane % 4 * 2 + j % 2;
        float best = __int_as_float(0xff800000);  // minus infinity
        int best_output = OUTPUTS;                // beaten by any output
        auto score = [&](int half) {
            const int o = output + half * 8, i = j / 2 * 4 + half * 2 + j % 2;
            return ACTIVATION::of(sums[i] * __ldg(factors + o) + (HAS_BIAS ? __ldg(bias + o) : 0.0f));
        };
        float shares[2];
        if constexpr (SOFTMAX)
            softmax_of_row<1, -16, -8, -4>(shares, score, [&](int half) { return output + half * 8 < OUTPUTS; });
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int o = output + half * 8;
            if (o >= OUTPUTS) continue;
            const OUTPUT value = OUTPUT(SOFTMAX ? shares[half] : score(half));
            if (image < rows) y[(long long)image * OUTPUTS + o] = value;
            if (ARGMAX && wins(float(value), o, best, best_output)) best = value, best_output = o;
        }
        if (!ARGMAX || t >= 32) continue;  // the first warp has all outputs
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2) {
            const float other = __shfl_xor_sync(~0u, best, apart);
            const int other_output = __shfl_xor_sync(~0u, best_output, apart);
            if (wins(other, other_output, best, best_output)) best = other, best_output = other_output;
        }
        if (lane < 4 && image < rows) labels[image] = best_output;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_warpgroup(const INPUT *__restrict__ x, const unsigned char *__restrict__ w, const float *__restrict__ factors,
                   const float *__restrict__ bias, OUTPUT *__restrict__ y,
#if ARGMAX
                   uint8 *__restrict__ labels,
#endif
#if SLICES > 1
                   float *__restrict__ slices,
#endif
                   int images) {
#if !ARGMAX
    uint8 *labels = nullptr;
#endif
    const int group = warpgroup_index(), t = threadIdx.x;
    const int image0 = blockIdx.x * ROWS, rows = min(ROWS, images - image0), first = blockIdx.y * TILE;
    x += (long long)image0 * INPUTS, y += (long long)image0 * OUTPUTS;
    if (ARGMAX) labels += image0;
    w += (long long)blockIdx.y * STEPS * W_BYTES;
    InputVectors vectors;
    if (t == CONSUMERS) begin_pipeline(w, KStep());
    if (group == GROUPS) begin_images(vectors, x, rows, t - CONSUMERS, KStep());
    __syncthreads();
    if (group == GROUPS) {
        if constexpr (THREADS >= 512) warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        produce(vectors, x, w, rows, t - CONSUMERS, KStep());
    } else {
        if constexpr (THREADS >= 512) warpgroup_reg_alloc<CONSUMER_REGISTERS>();
        if (rows > FEW) consume<ROWS>(y, labels, factors, bias, first, rows, t);
        else consume<FEW>(y, labels, factors, bias, first, rows, t);
    }
}

#if SLICES > 1
static_assert(!ARGMAX, "argmax needs whole sums");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_warpgroup_slice(const INPUT *__restrict__ x, const unsigned char *__restrict__ w, const float *, const float *,
                         OUTPUT *, float *__restrict__ slices, int images) {
    const int group = warpgroup_index(), t = threadIdx.x, slice = blockIdx.z;
    const int image0 = blockIdx.x * ROWS, rows = min(ROWS, images - image0), tile = blockIdx.y * TILE;
    const KStep first(slice_begin(slice), slice_begin(slice + 1));
    x += (long long)image0 * INPUTS;
    w += (long long)blockIdx.y * STEPS * W_BYTES;
    slices += ((long long)image0 * SLICES + slice) * OUTPUTS;
    InputVectors vectors;
    if (t == CONSUMERS) begin_pipeline(w, first);
    if (group == GROUPS) begin_images(vectors, x, rows, t - CONSUMERS, first);
    __syncthreads();
    if (group == GROUPS) {
        if constexpr (THREADS >= 512) warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        produce(vectors, x, w, rows, t - CONSUMERS, first);
    } else {
        if constexpr (THREADS >= 512) warpgroup_reg_alloc<CONSUMER_REGISTERS>();
        float sums[ROWS / 2];
        if (rows > FEW) {
            multiply<ROWS>(sums, t, first);
            store_slice<ROWS, OUTPUTS>(slices, sums, tile, rows, t);
        } else {
            multiply<FEW>(sums, t, first);
            store_slice<FEW, OUTPUTS>(slices, sums, tile, rows, t);
        }
    }
}

extern "C" __global__ void gemm_warpgroup_finish(const INPUT *, const unsigned char *, const float *__restrict__ factors,
                                                 const float *__restrict__ bias, OUTPUT *__restrict__ y,
                                                 const float *__restrict__ slices, int images) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at >= (long long)images * OUTPUTS) return;
    const int o = at % OUTPUTS;
    const float sum = add_slices<OUTPUTS>(slices + at / OUTPUTS * (SLICES * OUTPUTS) + o);
    y[at] = OUTPUT(ACTIVATION::of(sum * __ldg(factors + o) + (HAS_BIAS ? __ldg(bias + o) : 0.0f)));
}
#endif
