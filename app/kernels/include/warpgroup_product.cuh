// A block's matrix product by warpgroup tensor-core instructions: so many outputs (rows) for so many images (columns),
// fed by producer warps that run ahead through a ring of stages with barriers.
//
// In float16x2 a number of an image is the sum of two float16, split on the way to shared memory; a weight, too, unless
// it is exact in float16 (WEIGHT_PARTS). Bytes are exact in one. The tensor cores cut off what they add: in float16x2
// (SPLIT) a stage is summed there, the stages in the usual way.
//
// Weights are packed as [step][part][plane of 8 inputs][TILE outputs][8]. TILE is a multiple of 8: the last warpgroup's
// rows beyond it are whatever lies there, and so are their sums, which nobody reads.
//
// A long sum is cut into SLICES. Each is summed by itself from zero, and the slices are added in order. Of many images a
// block takes one slice after another; of few images each slice has a block, and a second kernel adds them: the same bits.
// Three warpgroups of split numbers have no registers for the totals of slices: these lie in shared memory, behind the
// stages.
#pragma once
#include "common.cuh"
#include "half.cuh"
#include "wgmma.cuh"

constexpr int DEPTH = 64, PLANES = DEPTH / 8;  // terms of the sum at a time, eight a plane
constexpr int STEPS = (INPUTS + DEPTH - 1) / DEPTH;
__device__ __forceinline__ int slice_begin(int slice) { return slice * STEPS / SLICES; }
constexpr int W_PLANE_BYTES = TILE * 16, W_PART_BYTES = PLANES * W_PLANE_BYTES, W_BYTES = WEIGHT_PARTS * W_PART_BYTES;
constexpr int X_PLANE_BYTES = (ROWS + 1) * 16;  // odd multiples of 16: a row is stored to all planes without conflicts
constexpr int X_PART_BYTES = PLANES * X_PLANE_BYTES;
constexpr int STAGE_BYTES = W_BYTES + PARTS * X_PART_BYTES, STAGES_BYTES = STAGES * STAGE_BYTES;
constexpr int GROUPS = (TILE + 63) / 64, CONSUMERS = 128 * GROUPS, PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;
constexpr int FEW = 8;  // images that fewer columns serve
constexpr bool SHARED_TOTALS = SLICES > 1 && SPLIT && GROUPS > 2;
constexpr bool BYTES = sizeof(INPUT) == 1;
static_assert(TILE % 8 == 0 && INPUTS % 8 == 0 && ROWS % 8 == 0, "the row must refuse other sizes");
static_assert((64 * GROUPS - TILE) * 16 <= X_PART_BYTES, "rows beyond the tile lie in the stage, too");

typedef long long WeightOffset;
#include "warpgroup_pipeline.cuh"

// One thread, before all else: the barriers, and the copies that need not wait. k: the block's first step, here and below.
__device__ __forceinline__ void begin_pipeline(const unsigned char *w, KStep k) {
    init_stages();
    fence_mbarrier_init();
    for (; k.taken() < STAGES && k.exists(); k.advance()) bring_weights(k, w);
}

// A producer's vectors of the images, for one step: eight numbers each, which become 16 bytes of a plane. Its first
// vector is row t / PLANES, plane t % PLANES; the others lie ROWS_APART rows on each. Images that do not exist are
// zeros.
constexpr int ROWS_APART = PRODUCERS / PLANES, VECTORS = (ROWS + ROWS_APART - 1) / ROWS_APART;
struct InputVector {
    unsigned word[8];  // of bytes the first two
};
typedef InputVector InputVectors[AHEAD][VECTORS];  // of the next steps, on their way in registers
constexpr bool IN_PIECES = BYTES || PARTS == 2;  // images go through registers, where they are split or widened
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

// Images that are stored as they are: the copy engine of each thread brings them, LAG steps are on their way.
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

// Images in pieces: those of the first steps are already on their way, those of the next ones meanwhile.
__device__ __forceinline__ void produce_pieces(InputVectors &vectors, const INPUT *x, const unsigned char *w, int rows,
                                               int t, KStep at) {
#pragma unroll 1
    while (at.exists()) {
#pragma unroll
        for (int turn = 0; turn < AHEAD; turn++) {  // each has its registers: to move those of a load is to wait for it
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

// A producer's first vector in memory. t: its number among the producers.
__device__ __forceinline__ const INPUT *first_vector(const INPUT *x, int t) {
    return x + (long long)(t / PLANES) * INPUTS + t % PLANES * 8;
}

// Asks for the images of the first steps; needs no barrier.
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

// Calls act(i, two) with a consumer's totals i and i + 1 in shared memory, of outputs in the tile. No two lanes share a
// bank. Pitch: floats for each output, so that a warp's totals lie in the rows of its outputs.
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

// The sums of a consumer's outputs, t / 32 * 16 + lane / 4 and eight more, for so many images, as wgmma.cuh has them.
// Pitch, for SHARED_TOTALS: floats for each output behind the stages, where its warp may store others afterwards; 0 for
// one slice alone.
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
#pragma unroll 1  // unrolled, the assembler (12.9, 13.2) takes the sums of two steps for the same
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
            for (int i = 0; i < Columns / 2; i++) total[i] += partial[i];  // tensor cores cut off what they add
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
            found[i] = IN_REGISTERS ? found[i] + sum(i) : sum(i);  // all sums before a branch, or wgmma is serialised
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
// Stores a slice's sums of a consumer: one in SLICES * Outputs for each image, outputs from `first` on side by side.
template <int Columns, int Outputs>
__device__ __forceinline__ void store_slice(float *slice, const float (&sums)[ROWS / 2], int first, int rows, int t) {
    const int output = first + t / 32 * 16 + t % 32 / 4;  // and eight more
#pragma unroll
    for (int i = 0; i < Columns / 2; i++) {
        const int image = i / 4 * 8 + t % 4 * 2 + i % 2, o = output + i % 4 / 2 * 8;
        if (image < rows && o < min(first + TILE, Outputs)) slice[(long long)image * (SLICES * Outputs) + o] = sums[i];
    }
}

// Adds an output's slices in order. slices: the first one's sum.
template <int Outputs>
__device__ __forceinline__ float add_slices(const float *slices) {
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < SLICES; i++) sum += __ldcg(slices + i * Outputs);
    return sum;
}
#endif
