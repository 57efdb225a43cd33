// A block's matrix product by warpgroup tensor-core instructions: TILE outputs (rows) for ROWS images (columns).
// Producer warps run ahead and fill a ring of stages with barriers.
//
// In float16x2 (SPLIT) a number of an image is split into two float16 on the way to shared memory, except bytes, which
// are exact in one. So is a weight, unless it is exact in float16 (WEIGHT_PARTS). The tensor cores, which truncate,
// then sum only the terms of a stage; ordinary additions sum the stages.
//
// Weights are packed as [step][part][plane of 8 inputs][TILE outputs][8]. TILE is a multiple of 8; the last warpgroup's
// rows beyond it hold arbitrary numbers, and their sums are not read.
//
// A long sum is cut into SLICES. Each is summed from zero, and the slices are added in order. For many images a block
// computes all slices; for few images each slice has a block, and a second kernel adds them, with the same bits. Three
// warpgroups with split numbers have no registers for the totals of slices: these are in shared memory behind the
// stages.
#pragma once
#include "common.cuh"
#include "half.cuh"
#include "wgmma.cuh"

constexpr int DEPTH = 64, PLANES = DEPTH / 8;  // terms of the sum per stage, eight per plane
constexpr int STEPS = (INPUTS + DEPTH - 1) / DEPTH;
__device__ __forceinline__ int slice_begin(int slice) { return slice * STEPS / SLICES; }
constexpr int W_PLANE_BYTES = TILE * 16, W_PART_BYTES = PLANES * W_PLANE_BYTES, W_BYTES = WEIGHT_PARTS * W_PART_BYTES;
constexpr int X_PLANE_BYTES = (ROWS + 1) * 16;  // an odd multiple of 16: a row is stored without bank conflicts
constexpr int X_PART_BYTES = PLANES * X_PLANE_BYTES;
constexpr int STAGE_BYTES = W_BYTES + PARTS * X_PART_BYTES, STAGES_BYTES = STAGES * STAGE_BYTES;
constexpr int GROUPS = (TILE + 63) / 64, CONSUMERS = 128 * GROUPS, PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;
constexpr int FEW = 8;  // up to so many images, products have fewer columns
constexpr bool SHARED_TOTALS = SLICES > 1 && SPLIT && GROUPS > 2;
constexpr bool BYTES = sizeof(INPUT) == 1;
static_assert(TILE % 8 == 0 && INPUTS % 8 == 0 && ROWS % 8 == 0, "the row must refuse other sizes");
static_assert((64 * GROUPS - TILE) * 16 <= X_PART_BYTES, "rows beyond the tile lie in the stage, too");

typedef long long WeightOffset;
#include "warpgroup_pipeline.cuh"

// Called first, by one thread: initialises barriers and starts copies. k: the block's first step, here and below.
__device__ __forceinline__ void begin_pipeline(const unsigned char *w, KStep k) {
    init_stages();
    fence_mbarrier_init();
    for (; k.taken() < STAGES && k.exists(); k.advance()) bring_weights(k, w);
}

// A producer thread's vectors of the images for one step: eight numbers each, which become 16 bytes of a plane. Its
// first vector is row t / PLANES, plane t % PLANES; the next ones are ROWS_APART rows further on. Missing images are
// zeros.
constexpr int ROWS_APART = PRODUCERS / PLANES, VECTORS = (ROWS + ROWS_APART - 1) / ROWS_APART;
struct InputVector {
    unsigned word[8];  // bytes use the first two
};
typedef InputVector InputVectors[AHEAD][VECTORS];  // of the next steps, loaded into registers
constexpr bool IN_PIECES = BYTES || PARTS == 2;  // images pass through registers, where they are split or widened
__device__ __forceinline__ bool is_row(int i, int t) { return t / PLANES + i * ROWS_APART < ROWS; }

__device__ __forceinline__ void load(InputVector (&vectors)[VECTORS], const INPUT *x, int step, int rows, int t) {
    const bool inside = t % PLANES * 8 + step * DEPTH < INPUTS;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        vectors[i] = {};
        if (inside && t / PLANES + i * ROWS_APART < rows) {
            const INPUT *source = x + (long long)i * ROWS_APART * INPUTS + step * DEPTH;
            if constexpr (BYTES) {
                const uint2 two = __ldg((const uint2 *)source);
                vectors[i] = {two.x, two.y};
            } else {
                const uint4 left = __ldg((const uint4 *)source), right = __ldg((const uint4 *)source + 1);
                vectors[i] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
            }
        }
    }
}

__device__ __forceinline__ void store(const InputVector &vector, unsigned char *place) {
    if constexpr (BYTES) {
        *(uint4 *)place = {to_half2(vector.word[0], 0x4140), to_half2(vector.word[0], 0x4342),
                           to_half2(vector.word[1], 0x4140), to_half2(vector.word[1], 0x4342)};
    } else {
        half2 high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            high[i] = split_half2(__uint_as_float(vector.word[2 * i]), __uint_as_float(vector.word[2 * i + 1]), low[i],
                                  LOW_SCALE);
        *(uint4 *)place = {high[0], high[1], high[2], high[3]};
        *(uint4 *)(place + X_PART_BYTES) = {low[0], low[1], low[2], low[3]};
    }
}

// Produces images that are stored unchanged, by asynchronous copies that run LAG steps ahead.
__device__ __forceinline__ void produce_copies(const INPUT *x, const unsigned char *w, int rows, int t, KStep at) {
    KStep done = at;
    while (done.exists()) {
        if (at.exists()) {
            acquire(at, w, t);
            unsigned char *place = at.smem() + W_BYTES + t % PLANES * X_PLANE_BYTES + t / PLANES * 16;
            const bool inside = t % PLANES * 8 + at.index * DEPTH < INPUTS;
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                if (!is_row(i, t)) continue;
                const bool there = inside && t / PLANES + i * ROWS_APART < rows;
                cp_async_16_or_zeros(place + i * ROWS_APART * 16,
                                     there ? x + at.index * DEPTH + (long long)i * ROWS_APART * INPUTS : x, there);
            }
            at.advance();
        }
        cp_async_commit_group();
        if (at.taken() > LAG || !at.exists()) {
            cp_async_wait<LAG>();
            publish(done, t);
            done.advance();
        }
    }
}

// Produces images that pass through registers; those of the first steps are already requested.
__device__ __forceinline__ void produce_pieces(InputVectors &vectors, const INPUT *x, const unsigned char *w, int rows,
                                               int t, KStep at) {
#pragma unroll 1
    while (at.exists()) {
#pragma unroll
        for (int turn = 0; turn < AHEAD; turn++) {  // fixed registers for each: moving them would wait
            if (!at.exists()) break;
            acquire(at, w, t);
            unsigned char *place = at.smem() + W_BYTES + t % PLANES * X_PLANE_BYTES + t / PLANES * 16;
#pragma unroll
            for (int i = 0; i < VECTORS; i++)
                if (is_row(i, t)) store(vectors[turn][i], place + i * ROWS_APART * 16);
            publish(at, t);
            if (AHEAD < STEPS) load(vectors[turn], x, at.index + AHEAD, rows, t);
            at.advance();
        }
    }
}

// The address of a producer's first vector. t: its number among the producers.
__device__ __forceinline__ const INPUT *first_vector(const INPUT *x, int t) {
    return x + (long long)(t / PLANES) * INPUTS + t % PLANES * 8;
}

// Requests the images of the first steps; needs no barrier.
__device__ __forceinline__ void begin_images(InputVectors &vectors, const INPUT *x, int rows, int t, const KStep &k) {
#pragma unroll
    for (int step = 0; IN_PIECES && step < AHEAD; step++)
        load(vectors[step], first_vector(x, t), k.first + step, rows, t);
}

__device__ __forceinline__ void produce(InputVectors &vectors, const INPUT *x, const unsigned char *w, int rows, int t,
                                        const KStep &k) {
    if constexpr (IN_PIECES) produce_pieces(vectors, first_vector(x, t), w, rows, t, k);
    else produce_copies(first_vector(x, t), w, rows, t, k);
}

// Calls act(i, two) with a consumer's totals i and i + 1 in shared memory, for outputs in the tile. No bank conflicts.
// Pitch: floats per output, such that a warp's totals are within the rows of its outputs.
template <int Columns, int Pitch, typename Act>
__device__ __forceinline__ void for_totals(int t, Act act) {
    float2 *totals = (float2 *)(memory + STAGES_BYTES) + t / 32 * (8 * Pitch) + t % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (t / 32 * 16 + half * 8 >= TILE) break;
#pragma unroll
        for (int i = 2 * half; i < Columns / 2; i += 4) act(i, totals[half * (4 * Pitch) + i / 4 * 32]);
    }
}

// Computes the sums of a consumer's outputs, t / 32 * 16 + lane / 4 and that + 8, for Columns images, as wgmma.cuh lays
// them out. Pitch, for SHARED_TOTALS: floats per output behind the stages, where its warp may store others afterwards;
// 0 for a single slice.
template <int Columns, int Pitch = 0>
__device__ __forceinline__ void multiply(float (&sums)[ROWS / 2], int t, KStep at) {
    const int lane = t % 32;
    const unsigned stages = shared_address(memory);
    const unsigned long long weights = make_smem_desc(stages + t / 128 * (64 * 16), W_PLANE_BYTES, 128);
    const unsigned long long images = make_smem_desc(stages + W_BYTES, X_PLANE_BYTES, 128);
    float total[Columns / 2] = {}, cross[Columns / 2] = {}, found[Columns / 2] = {};
    const auto sum = [&](int i) { return SPLIT ? total[i] + cross[i] * (1.0f / LOW_SCALE) : total[i]; };
    constexpr bool IN_SHARED = SHARED_TOTALS && Pitch > 0, IN_REGISTERS = SLICES > 1 && !SHARED_TOTALS;
    const bool idle = IN_SHARED && t / 32 * 16 >= TILE;  // a warp without outputs
    if (IN_SHARED && !idle) for_totals<Columns, Pitch>(t, [](int, float2 &two) { two = {}; });
    int slice = (at.first * SLICES + STEPS - 1) / STEPS;
#pragma unroll 1  // if unrolled, the assembler (12.9, 13.2) confuses the sums of two steps
    for (; at.exists(); at.advance()) {
        const int stage = at.pipe.stage * STAGE_BYTES;
        const unsigned long long w = advance_desc(weights, stage), x = advance_desc(images, stage);
        mbarrier_wait(full() + at.pipe.stage, at.pipe.phase);
        if constexpr (SPLIT) {
            float partial[Columns / 2] = {};
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < PLANES; k += 2) {
                const unsigned long long high_w = advance_desc(w, k * W_PLANE_BYTES);
                const unsigned long long high_x = advance_desc(x, k * X_PLANE_BYTES);
                wgmma_f16(partial, high_w, high_x, k == 0);
                if (WEIGHT_PARTS == 2) wgmma_f16(cross, advance_desc(high_w, W_PART_BYTES), high_x, false);
                if (PARTS == 2) wgmma_f16(cross, high_w, advance_desc(high_x, X_PART_BYTES), false);
            }
            wgmma_commit_group();
            wgmma_wait_group(partial, cross);
            if (lane == 0) mbarrier_arrive(empty() + at.pipe.stage);
#pragma unroll
            for (int i = 0; i < Columns / 2; i++) total[i] += partial[i];  // rounded additions: tensor cores truncate
        } else {
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < PLANES; k += 2)
                wgmma_f16(total, advance_desc(w, k * W_PLANE_BYTES), advance_desc(x, k * X_PLANE_BYTES), false);
            wgmma_commit_group();
            wgmma_wait_group(total);
            if (lane == 0) mbarrier_arrive(empty() + at.pipe.stage);
        }
        if (!IN_SHARED && !IN_REGISTERS || at.index + 1 < slice_begin(slice + 1) || idle) continue;
        slice++;
#pragma unroll
        for (int i = 0; i < Columns / 2; i++) {
            found[i] = IN_REGISTERS ? found[i] + sum(i) : sum(i);  // all sums before a branch, else wgmma is serialised
            total[i] = cross[i] = 0;
        }
        if constexpr (IN_SHARED)
            for_totals<Columns, Pitch>(t, [&](int i, float2 &two) { two = {two.x + found[i], two.y + found[i + 1]}; });
    }
    if constexpr (IN_SHARED) {
        if (!idle) for_totals<Columns, Pitch>(t, [&](int i, float2 &two) { sums[i] = two.x, sums[i + 1] = two.y; });
        __syncwarp();
    } else {
#pragma unroll
        for (int i = 0; i < Columns / 2; i++) sums[i] = IN_REGISTERS ? found[i] : sum(i);
    }
}

#if SLICES > 1
// Stores a consumer's sums of one slice: images SLICES * Outputs apart, outputs from `first` on next to each other.
template <int Columns, int Outputs>
__device__ __forceinline__ void store_slice(float *slice, const float (&sums)[ROWS / 2], int first, int rows, int t) {
    const int output = first + t / 32 * 16 + t % 32 / 4;  // and output + 8
#pragma unroll
    for (int i = 0; i < Columns / 2; i++) {
        const int image = i / 4 * 8 + t % 4 * 2 + i % 2, o = output + i % 4 / 2 * 8;
        if (image < rows && o < min(first + TILE, Outputs)) slice[(long long)image * (SLICES * Outputs) + o] = sums[i];
    }
}

// Returns the sum of an output's slices, added in order. slices: points to the first.
template <int Outputs>
__device__ __forceinline__ float add_slices(const float *slices) {
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < SLICES; i++) sum += __ldcg(slices + i * Outputs);
    return sum;
}
#endif
