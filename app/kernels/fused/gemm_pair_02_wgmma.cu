// Two fully connected layers, ReLU between them and an argmax after them, in one kernel, step 2: warpgroup tensor-core
// instructions, fed by warps that run ahead.
//
// What changed since step 1: hidden values are the rows of the product and images its columns, so that a block may have
// any multiple of eight images: 80, and 10,000 are one block per SM. Warps have roles: the consumers, two warpgroups,
// multiply, the producers, four warps, feed them, and only a ring of stages with barriers connects them. The
// second product is one of tensor cores, too. Up to eight images are a cluster of blocks, each with a step of the sum.
// From: none of the systems.
// Data: x (images, INPUTS) INPUT; w1, w2 packed (see gemm_pair.py) float16 and float32; bias1 (HIDDEN) or null;
//       bias2 (CLASSES) or null; y (images, CLASSES) float32; labels (images) uint8.
// Launch: one block for ROWS images, or STEP_BLOCKS for FEW: a warpgroup for 64 hidden values of theirs, and 128
//         producer threads. It starts while the kernel ahead still runs, brings the weights, and waits for the features.
// Bound by: nothing alone. Shared memory works for a third of the time, the tensor cores for a fifth; blocks take in
//           from the L2 cache about what it delivers in that time, and wait for each step's images.
#include "cluster.cuh"
#include "dependent_launch.cuh"
#include "half.cuh"
#include "second_product.cuh"

constexpr int PARTS = SPLIT ? 2 : 1;                    // float16 per number of an image
constexpr int DEPTH = 128 / PARTS, PLANES = DEPTH / 8;  // terms of the sum per stage, eight per plane
constexpr int STEPS = INPUTS / DEPTH;
constexpr int W_PLANE_BYTES = HIDDEN * 16, W_PART_BYTES = PLANES * W_PLANE_BYTES;
constexpr int W_BYTES = WEIGHT_PARTS * W_PART_BYTES;  // one part if weights are exact in float16
constexpr int X_PLANE_BYTES = (ROWS + 1) * 16;  // an odd multiple of 16: a row is stored without bank conflicts
constexpr int X_PART_BYTES = PLANES * X_PLANE_BYTES;
constexpr int STAGE_BYTES = W_BYTES + PARTS * X_PART_BYTES;
constexpr int CONSUMERS = 2 * HIDDEN, PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;
static_assert(INPUTS % DEPTH == 0 && HIDDEN % 64 == 0 && ROWS % 8 == 0, "the row must refuse these sizes");
static_assert(STAGES <= STEPS, "the first copies fill all stages");
static_assert(HIDDEN * PITCH * 4 <= STAGES * STAGE_BYTES, "hidden values take the stages' place");
static_assert(STEP_BLOCKS == 1 || STEP_BLOCKS == STEPS && !SPLIT && FEW == 8, "a block has one step or all");
static_assert(STEP_BLOCKS * CONSUMERS * 16 <= (STAGES - 1) * STAGE_BYTES, "a step's sums take the other stages' place");

typedef int WeightOffset;  // 64 bits would take more registers
#include "warpgroup_pipeline.cuh"

struct SharedStorage {
    unsigned char stages[STAGES * STAGE_BYTES];
    unsigned char second[SECOND_BYTES];
    unsigned long long full[STAGES], empty[STAGES], second_full;  // barriers
};
__device__ __forceinline__ unsigned long long *full() { return shared_storage<SharedStorage>().full; }
__device__ __forceinline__ unsigned long long *empty() { return shared_storage<SharedStorage>().empty; }

// Called first, by one thread: initialises barriers and starts copies. first, steps: the range of the weights.
__device__ __forceinline__ void begin(const unsigned char *w1, const void *w2, int first, int steps) {
    SharedStorage &smem = shared_storage<SharedStorage>();
    init_stages();
    mbarrier_init(&smem.second_full, 1);
    fence_mbarrier_init();
    for (KStep at{first}; at.index < first + steps; at.advance()) bring_weights(at, w1);
    if (first == 0) cp_async_bulk(smem.second, w2, SECOND_BYTES, &smem.second_full);
}

// A producer thread's vectors of the images for one step: eight numbers each, which become 16 bytes of a plane. Its
// first vector is row t / PLANES, plane t % PLANES; the next ones are ROWS_APART rows further on. Rows of missing
// images do not change, because a column of the product depends on no other.
constexpr int ROWS_APART = PRODUCERS / PLANES, VECTORS = (ROWS + ROWS_APART - 1) / ROWS_APART;
static_assert(FEW <= ROWS_APART, "of few images a thread has one vector a step");
// Steps that are loaded ahead. In float32 more than one gains nothing. For few images a thread has one vector per step,
// so more steps are loaded ahead, and all of them together wait once for the L2 cache.
constexpr int AHEAD = SPLIT ? 1 : 2, FEW_AHEAD = STEPS < 8 / PARTS ? STEPS : 8 / PARTS;
static_assert(AHEAD <= STEPS, "the first loads are of so many steps");
struct InputVector {
    uint4 word[PARTS];
};
__device__ __forceinline__ bool is_row(int i, int rows, int t) { return t / PLANES + i * ROWS_APART < rows; }

template <int Count>
__device__ __forceinline__ void load(InputVector (&vectors)[Count], const INPUT *x, int rows, int t) {
#pragma unroll
    for (int i = 0; i < Count; i++) {
        const uint4 *source = (const uint4 *)(x + i * ROWS_APART * INPUTS);
        if (!is_row(i, rows, t)) continue;
#pragma unroll
        for (int j = 0; j < PARTS; j++) vectors[i].word[j] = __ldcg(source + j);  // may be written meanwhile: not __ldg
    }
}

// split_half2 for the bits of two numbers.
__device__ __forceinline__ half2 split_bits(unsigned a, unsigned b, half2 &low) {
    return split_half2(__uint_as_float(a), __uint_as_float(b), low, LOW_SCALE);
}

__device__ __forceinline__ void store(const InputVector &vector, unsigned char *place) {
    if (!SPLIT) {
        *(uint4 *)place = vector.word[0];
        return;
    }
    const uint4 &l = vector.word[0], &r = vector.word[PARTS - 1];
    uint4 low;
    *(uint4 *)place = {split_bits(l.x, l.y, low.x), split_bits(l.z, l.w, low.y), split_bits(r.x, r.y, low.z),
                       split_bits(r.z, r.w, low.w)};
    *(uint4 *)(place + X_PART_BYTES) = low;
}

// Stores a thread's vectors in the step's stage.
template <int Count>
__device__ __forceinline__ void store_and_publish(const InputVector (&vectors)[Count],
                                                  const KStep &at, int rows, int t) {
    unsigned char *place = at.smem() + W_BYTES + t % PLANES * X_PLANE_BYTES + t / PLANES * 16;
#pragma unroll
    for (int i = 0; i < Count; i++)
        if (is_row(i, rows, t)) store(vectors[i], place + i * ROWS_APART * 16);
    publish(at, t);
}

// Produces images through registers, where they are split; Ahead steps are loaded ahead. Count: a thread's vectors per
// step.
template <int Ahead, int Count>
__device__ __forceinline__ void produce(const INPUT *x, const unsigned char *w1, int rows, int t) {
    x += t / PLANES * INPUTS + t % PLANES * 8;
    InputVector vectors[Ahead][Count];
    griddepcontrol_wait();
#pragma unroll
    for (int next = 0; next < Ahead; next++) load(vectors[next], x + next * DEPTH, rows, t);
#pragma unroll 1
    for (KStep at; at.exists();) {
#pragma unroll
        for (int next = 0; next < Ahead; next++) {
            if (STEPS % Ahead && !at.exists()) break;
            acquire(at, w1, t);
            store_and_publish(vectors[next], at, rows, t);
            if (at.index + Ahead < STEPS) load(vectors[next], x + (at.index + Ahead) * DEPTH, rows, t);
            at.advance();
        }
    }
}

// Loads the biases of a consumer's hidden values.
template <int Sums>
__device__ __forceinline__ void load_bias(float (&sums)[Sums], const float *bias1, int t) {
    const int hidden = t / 32 * 16 + t % 32 / 4;  // and that + 8
#pragma unroll
    for (int i = 0; i < Sums; i++) sums[i] = HAS_BIAS1 ? __ldg(bias1 + hidden + i % 4 / 2 * 8) : 0.0f;
}

// Multiplies a step for a consumer's hidden values. cross: products of a high and a low half are added to it.
template <int Sums>
__device__ __forceinline__ void multiply_step(float (&sums)[Sums], float (&cross)[Sums], const KStep &at, int t) {
    const unsigned stage = shared_address(at.smem()) & WITHIN_BLOCK;
    const unsigned long long w = make_smem_desc(stage + t / 128 * (64 * 16), W_PLANE_BYTES, 128);
    const unsigned long long x = make_smem_desc(stage + W_BYTES, X_PLANE_BYTES, 128);
    mbarrier_wait(full() + at.pipe.stage, at.pipe.phase);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < PLANES; k += 2) {
        const unsigned long long high_w = advance_desc(w, k * W_PLANE_BYTES);
        const unsigned long long high_x = advance_desc(x, k * X_PLANE_BYTES);
        wgmma_f16(sums, high_w, high_x, k == 0);
        if (SPLIT) {
            if (WEIGHT_PARTS == 2) wgmma_f16(cross, advance_desc(high_w, W_PART_BYTES), high_x, false);
            wgmma_f16(cross, high_w, advance_desc(high_x, X_PART_BYTES), false);
        }
    }
    wgmma_commit_group();
    if (SPLIT) wgmma_wait_group(sums, cross);
    else wgmma_wait_group(sums);
}

// Computes a consumer's hidden values before ReLU, for Columns images.
template <int Columns>
__device__ __forceinline__ void multiply_first(float (&values)[ROWS / 2], const float *bias1, int t) {
    float sums[Columns / 2], cross[Columns / 2] = {};
    load_bias(sums, bias1, t);
#pragma unroll 1  // if unrolled, the assembler (12.9, 13.2) confuses the sums of two steps
    for (KStep at; at.exists(); at.advance()) {
        float partial[Columns / 2] = {};
        multiply_step(partial, cross, at, t);
        if (t % 32 == 0) mbarrier_arrive(empty() + at.pipe.stage);
#pragma unroll
        for (int i = 0; i < Columns / 2; i++) sums[i] += partial[i];  // tensor cores truncate sums
    }
#pragma unroll
    for (int i = 0; i < Columns / 2; i++) values[i] = SPLIT ? sums[i] + cross[i] * (1.0f / LOW_SCALE) : sums[i];
}

// The same for few images by a cluster, in which each block multiplies one step. Returns true in the first block, which
// adds the steps' sums in the order of ``multiply_first``, with the same bits; false in the others.
__device__ __forceinline__ bool multiply_in_cluster(float (&values)[ROWS / 2], const INPUT *x, const float *bias1,
                                                    int rows, int t) {
    float4 *parts = (float4 *)(memory + STAGE_BYTES) + t;  // sums of each step; only the first stage has operands
    const int step = cluster_rank();
    const KStep only;
    float sums[FEW / 2];
    cluster_arrive();
    if (t >= CONSUMERS) {
        const int producer = t - CONSUMERS;
        InputVector vectors[1];
        griddepcontrol_wait();
        load(vectors, x + producer / PLANES * INPUTS + producer % PLANES * 8 + step * DEPTH, rows, producer);
        store_and_publish(vectors, only, rows, producer);
        __syncwarp();  // barriers of the cluster need whole warps
    }
    cluster_wait();  // the first block has begun
    if (t < CONSUMERS) {
        float partial[FEW / 2] = {}, cross[FEW / 2] = {};
        load_bias(sums, bias1, t);
        multiply_step(partial, cross, only, t);
        store_in_block(0, parts + step * CONSUMERS, make_float4(partial[0], partial[1], partial[2], partial[3]));
    }
    cluster_arrive();
    if (step != 0) return false;  // a block may end after it has arrived
    cluster_wait();
    if (t >= CONSUMERS) return true;
#pragma unroll
    for (int i = 0; i < STEP_BLOCKS; i++) {
        const float4 part = parts[i * CONSUMERS];
        sums[0] += part.x, sums[1] += part.y, sums[2] += part.z, sums[3] += part.w;
    }
#pragma unroll
    for (int i = 0; i < FEW / 2; i++) values[i] = sums[i];
    return true;
}

// Stores ReLU of the values in shared memory: rows of PITCH, a column per image.
__device__ __forceinline__ void store_hidden(const float (&values)[ROWS / 2], int rows, int t) {
    const int lane = t % 32, hidden = t / 32 * 16 + lane / 4;  // and that + 8
#pragma unroll
    for (int i = 0; i < ROWS / 2; i += 2) {
        if (i / 4 * 8 >= rows) break;
        float *place = (float *)memory + (hidden + i % 4 / 2 * 8) * PITCH + i / 4 * 8 + lane % 4 * 2;
        *(float2 *)place = {RELU::of(values[i]), RELU::of(values[i + 1])};
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_pair_wgmma(const INPUT *__restrict__ x, const unsigned char *__restrict__ w1, const float *__restrict__ bias1,
                    const void *__restrict__ w2, const float *__restrict__ bias2, float *__restrict__ y,
                    unsigned char *__restrict__ labels, int images) {
    const int t = threadIdx.x, lane = t % 32;
    const bool in_cluster = STEP_BLOCKS > 1 && images <= FEW;
    const int image0 = in_cluster ? 0 : blockIdx.x * ROWS, rows = min(ROWS, images - image0);
    x += (long long)image0 * INPUTS, y += (long long)image0 * CLASSES, labels += image0;
    if (t == CONSUMERS) begin(w1, w2, in_cluster ? cluster_rank() : 0, in_cluster ? 1 : STAGES);
    __syncthreads();
    float values[ROWS / 2];
    if (in_cluster) {
        if (!multiply_in_cluster(values, x, bias1, rows, t)) return;
    } else if (t >= CONSUMERS && rows > FEW) produce<AHEAD, VECTORS>(x, w1, rows, t - CONSUMERS);
    else if (t >= CONSUMERS) produce<FEW_AHEAD, 1>(x, w1, rows, t - CONSUMERS);
    else if (rows > FEW) multiply_first<ROWS>(values, bias1, t);
    else multiply_first<FEW>(values, bias1, t);
    __syncthreads();  // all stages have been read. Of the whole block: racecheck follows no barrier among some of its warps
    if (t < CONSUMERS) store_hidden(values, rows, t);
    float bias[CLASS_TILES][2];
    load_second_bias(bias, bias2, lane);
    __syncthreads();
    mbarrier_wait(&shared_storage<SharedStorage>().second_full, 0);
    for (int tile = t / 32 * 8; tile < rows; tile += THREADS / 32 * 8) {
        Scores scores;
        const Fragment *second = (const Fragment *)shared_storage<SharedStorage>().second;
        multiply_second(scores, bias, (const float *)memory + tile, second, lane);
        store_results(scores, y + tile * CLASSES, labels + tile, rows - tile, lane);
    }
}
