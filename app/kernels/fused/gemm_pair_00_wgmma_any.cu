// Any two fully connected layers, with activation, softmax and argmax, in one kernel: warpgroup tensor-core
// instructions.
//
// A block computes all hidden values of its images, which stay in shared memory: the first product as in
// gemm_09_warpgroup, the second as in gemm_pair_02, then a softmax, if there is one, and the labels. Images are
// bytes, float16, or float32 that are split (warpgroup_product.cuh).
// From: none of the systems.
// Data: x (images, INPUTS) INPUT; w1 packed (see any_product_pair.py) float16; factors (HIDDEN) from sums to values;
//       bias1 (HIDDEN) or null; w2 packed float32; bias2 (CLASSES) or null; y (images, CLASSES) float32;
//       labels (images) uint8; with several SLICES workspace slices (images, SLICES, HIDDEN) float.
// Launch: one block for ROWS images: a warpgroup for 64 hidden values of theirs, and 128 producer threads. Of few images,
//         blockIdx.y = slice of a long sum; then a block for eight images adds the slices and does all that follows.
// Bound by: what the L2 cache delivers where the first layer reads many features; latency where it reads few.
#include "dependent_launch.cuh"
#include "common.cuh"
#include "warpgroup_product.cuh"
#include "second_product.cuh"
static_assert(HIDDEN == TILE, "the first product computes all hidden values");

// Threads of the second product: all, unless the producers have released their registers.
constexpr int SCORERS = THREADS >= 512 ? CONSUMERS : THREADS;

struct SharedStorage {
    unsigned char stages[STAGES_BYTES];
    // Separate from the stages: to reuse their memory would need a barrier of the whole block while the sums are in
    // registers, but producers and consumers are then in different branches.
    float hidden[HIDDEN * PITCH];  // with SHARED_TOTALS, first the totals of each warp's slices
    unsigned char second[SECOND_BYTES];
    unsigned long long full[STAGES], empty[STAGES], second_full;  // barriers
};
// Not written as a member of the struct, because the compiler would not fold its address into each access.
__device__ __forceinline__ float *hidden_values() { return (float *)(memory + STAGES_BYTES); }
__device__ __forceinline__ unsigned long long *full() { return shared_storage<SharedStorage>().full; }
__device__ __forceinline__ unsigned long long *empty() { return shared_storage<SharedStorage>().empty; }

// Factors and biases of a thread's two hidden values, loaded before the sums are complete.
struct Epilogue {
    float factor[2] = {}, bias[2] = {};
    __device__ __forceinline__ Epilogue(const float *factors, const float *bias1, int first) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (first + half * 8 >= HIDDEN) break;
            factor[half] = __ldg(factors + first + half * 8);
            if (HAS_BIAS1) bias[half] = __ldg(bias1 + first + half * 8);
        }
    }
};

// Computes the first product and stores hidden values in shared memory: rows of PITCH, a column per image.
template <int Columns>
__device__ __forceinline__ void consume(const float *factors, const float *bias1, int t) {
    const int lane = t % 32, first = t / 32 * 16 + lane / 4;  // and that + 8
    const Epilogue epilogue(factors, bias1, first);
    float sums[ROWS / 2];
    multiply<Columns, PITCH>(sums, t, KStep());
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (first + half * 8 >= HIDDEN) break;
        const float factor = epilogue.factor[half], bias = epilogue.bias[half];
        float *row = hidden_values() + (first + half * 8) * PITCH + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < Columns / 8; i++) {
            const float *pair = sums + 4 * i + 2 * half;
            *(float2 *)(row + 8 * i) = {activate<ACTIVATION, !SPLIT>(pair[0] * factor + bias),
                                        activate<ACTIVATION, !SPLIT>(pair[1] * factor + bias)};
        }
    }
}

// Computes the second product, softmax and argmax for eight images per warp at a time. warps: how many take part.
__device__ __forceinline__ void finish(const float (&bias)[CLASS_TILES][2], float *y, unsigned char *labels, int rows,
                                       int warps) {
    const int t = threadIdx.x, lane = t % 32;
    SharedStorage &smem = shared_storage<SharedStorage>();
    mbarrier_wait(&smem.second_full, 0);
    for (int tile = t / 32 * 8; tile < rows; tile += warps * 8) {
        Scores scores;
        multiply_second(scores, bias, hidden_values() + tile, (const Fragment *)smem.second, lane);
        store_results(scores, y + tile * CLASSES, labels + tile, rows - tile, lane);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_pair_wgmma_any(const INPUT *__restrict__ x, const unsigned char *__restrict__ w1,
                        const float *__restrict__ factors, const float *__restrict__ bias1, const void *__restrict__ w2,
                        const float *__restrict__ bias2, float *__restrict__ y, unsigned char *__restrict__ labels,
#if SLICES > 1
                        float *__restrict__ slices,
#endif
                        int images) {
    const int group = warpgroup_index(), t = threadIdx.x, lane = t % 32;
    const int image0 = blockIdx.x * ROWS, rows = min(ROWS, images - image0);
    x += (long long)image0 * INPUTS, y += (long long)image0 * CLASSES, labels += image0;
    SharedStorage &smem = shared_storage<SharedStorage>();
    InputVectors vectors;
    griddepcontrol_launch_dependents();  // the next batch loads its weights while this one ends
    if (t == CONSUMERS) {
        mbarrier_init(&smem.second_full, 1);
        begin_pipeline(w1, KStep());
        cp_async_bulk(smem.second, w2, SECOND_BYTES, &smem.second_full);
    }
    if (group == GROUPS) {
        griddepcontrol_wait();  // for the images, and so before the results
        begin_images(vectors, x, rows, t - CONSUMERS, KStep());
    }
    __syncthreads();
    if (group == GROUPS) {
        if constexpr (THREADS >= 512) warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        produce(vectors, x, w1, rows, t - CONSUMERS, KStep());
    } else {
        if constexpr (THREADS >= 512) warpgroup_reg_alloc<CONSUMER_REGISTERS>();
        if (rows > FEW) consume<ROWS>(factors, bias1, t);
        else consume<FEW>(factors, bias1, t);
    }
    float bias[CLASS_TILES][2];
    load_second_bias(bias, bias2, lane);
    __syncthreads();  // the second product reads all hidden values
    if (t < SCORERS) finish(bias, y, labels, rows, SCORERS / 32);
}

#if SLICES > 1
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_pair_wgmma_any_slice(const INPUT *__restrict__ x, const unsigned char *__restrict__ w1, const float *,
                              const float *, const void *, const float *, float *, unsigned char *,
                              float *__restrict__ slices, int images) {
    const int group = warpgroup_index(), t = threadIdx.x, slice = blockIdx.y;
    const int image0 = blockIdx.x * ROWS, rows = min(ROWS, images - image0);
    const KStep first(slice_begin(slice), slice_begin(slice + 1));
    x += (long long)image0 * INPUTS;
    slices += ((long long)image0 * SLICES + slice) * HIDDEN;
    InputVectors vectors;
    griddepcontrol_launch_dependents();
    if (t == CONSUMERS) begin_pipeline(w1, first);
    if (group == GROUPS) {
        griddepcontrol_wait();
        begin_images(vectors, x, rows, t - CONSUMERS, first);
    }
    __syncthreads();
    if (group == GROUPS) {
        if constexpr (THREADS >= 512) warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        produce(vectors, x, w1, rows, t - CONSUMERS, first);
    } else {
        if constexpr (THREADS >= 512) warpgroup_reg_alloc<CONSUMER_REGISTERS>();
        float sums[ROWS / 2];
        if (rows > FEW) {
            multiply<ROWS>(sums, t, first);
            store_slice<ROWS, HIDDEN>(slices, sums, 0, rows, t);
        } else {
            multiply<FEW>(sums, t, first);
            store_slice<FEW, HIDDEN>(slices, sums, 0, rows, t);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_pair_wgmma_any_finish(const INPUT *, const unsigned char *, const float *__restrict__ factors,
                               const float *__restrict__ bias1, const void *__restrict__ w2,
                               const float *__restrict__ bias2, float *__restrict__ y,
                               unsigned char *__restrict__ labels, const float *__restrict__ slices, int images) {
    const int t = threadIdx.x, image0 = blockIdx.x * 8, rows = min(8, images - image0);
    SharedStorage &smem = shared_storage<SharedStorage>();
    griddepcontrol_launch_dependents();
    if (t == 0) {
        mbarrier_init(&smem.second_full, 1);
        fence_mbarrier_init();
        cp_async_bulk(smem.second, w2, SECOND_BYTES, &smem.second_full);
    }
    float bias[CLASS_TILES][2];
    load_second_bias(bias, bias2, t % 32);
    griddepcontrol_wait();
    for (int at = t; at < 8 * HIDDEN; at += THREADS) {
        const int image = at / HIDDEN, h = at % HIDDEN;
        float value = 0;
        if (image < rows) {
            const float sum = add_slices<HIDDEN>(slices + (long long)(image0 + image) * (SLICES * HIDDEN) + h);
            value = activate<ACTIVATION, !SPLIT>(sum * __ldg(factors + h) + (HAS_BIAS1 ? __ldg(bias1 + h) : 0.0f));
        }
        hidden_values()[h * PITCH + image] = value;
    }
    __syncthreads();
    if (t < 32) finish(bias, y + (long long)image0 * CLASSES, labels + image0, rows, 1);
}
#endif
