// A block's matrix product by warpgroup tensor-core instructions: so many outputs (rows) for so many images (columns), fed by
// producer warps that run ahead through a ring of stages with barriers.
//
// In float16x2 a number of an image is the sum of two float16, split on the way to shared memory; a weight, too, unless it
// is exact in float16 (WEIGHT_PARTS). Bytes are exact in one. The tensor cores cut off what they add: in float16x2 (SPLIT) a
// stage is summed there, the stages in the usual way.
//
// Weights are packed as [step][part][plane of 8 inputs][TILE outputs][8]. TILE is a multiple of 8: the last warpgroup's
// rows beyond it are whatever lies there, and so are their sums, which nobody reads.
#pragma once
#include "bulk_copy.cuh"
#include "common.cuh"
#include "wgmma.cuh"

constexpr int DEPTH = 64, PLANES = DEPTH / 8;  // terms of the sum at a time, eight a plane
constexpr int STEPS = (INPUTS + DEPTH - 1) / DEPTH;
constexpr int W_PLANE_BYTES = TILE * 16, W_PART_BYTES = PLANES * W_PLANE_BYTES, W_BYTES = WEIGHT_PARTS * W_PART_BYTES;
constexpr int X_PLANE_BYTES = (ROWS + 1) * 16;  // odd multiples of 16: a row is stored to all planes without conflicts
constexpr int X_PART_BYTES = PLANES * X_PLANE_BYTES;
constexpr int STAGE_BYTES = W_BYTES + PARTS * X_PART_BYTES, RING_BYTES = STAGES * STAGE_BYTES;
constexpr int GROUPS = (TILE + 63) / 64, CONSUMERS = 128 * GROUPS, PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;
constexpr int FEW = 8;  // images that fewer columns serve
constexpr bool BYTES = sizeof(INPUT) == 1;
static_assert(TILE % 8 == 0 && INPUTS % 8 == 0 && ROWS % 8 == 0, "the row must refuse other sizes");
static_assert((64 * GROUPS - TILE) * 16 <= X_PART_BYTES, "rows beyond the tile lie in the stage, too");

// Shared memory: the ring of stages, what a kernel adds, then two barriers a stage and those that a kernel adds.
extern __shared__ __align__(128) unsigned char memory[];
__device__ __forceinline__ unsigned long long *full() { return (unsigned long long *)(memory + BARRIERS_AT); }
__device__ __forceinline__ unsigned long long *empty() { return full() + STAGES; }

// A walk over the steps' stages.
struct Walk {
    int step = 0;
    Ring<STAGES> ring;
    __device__ __forceinline__ bool goes_on() const { return step < STEPS; }
    __device__ __forceinline__ void advance() {
        step++;
        ring.advance();
    }
    __device__ __forceinline__ unsigned char *memory_of_stage() const { return memory + ring.stage * STAGE_BYTES; }
};

__device__ __forceinline__ void bring_weights(const Walk &at, const unsigned char *w) {
    cp_async_bulk(at.memory_of_stage(), w + (long long)at.step * W_BYTES, W_BYTES, full() + at.ring.stage);
}

// One thread, before all else: the barriers, and the copies that need not wait.
__device__ __forceinline__ void begin_ring(const unsigned char *w) {
    for (int stage = 0; stage < STAGES; stage++)
        mbarrier_init(full() + stage, 1 + PRODUCERS / 32), mbarrier_init(empty() + stage, CONSUMERS / 32);
    fence_mbarrier_init();
    for (Walk at; at.step < STAGES && at.goes_on(); at.advance()) bring_weights(at, w);
}

// A producer's pieces of the images, for one step: eight numbers each, which become 16 bytes of a plane. Its first piece is
// row t / PLANES, plane t % PLANES; the others lie ROWS_APART rows on each. Images that do not exist are zeros.
constexpr int ROWS_APART = PRODUCERS / PLANES, PIECES = (ROWS + ROWS_APART - 1) / ROWS_APART;
constexpr int AHEAD = BYTES ? 4 : 1;  // steps whose pieces are on their way in registers
struct Piece {
    unsigned word[8];  // of bytes the first two
};
__device__ __forceinline__ bool is_place(int i, int t) { return t / PLANES + i * ROWS_APART < ROWS; }

__device__ __forceinline__ void load(Piece (&pieces)[PIECES], const INPUT *x, int step, int rows, int t) {
    const bool inside = t % PLANES * 8 + step * DEPTH < INPUTS;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = {};
        if (inside && t / PLANES + i * ROWS_APART < rows) {
            const INPUT *source = x + (long long)i * ROWS_APART * INPUTS + step * DEPTH;
            if constexpr (BYTES) {
                const uint2 two = __ldg((const uint2 *)source);
                pieces[i] = {two.x, two.y};
            } else {
                const uint4 left = __ldg((const uint4 *)source), right = __ldg((const uint4 *)source + 1);
                pieces[i] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
            }
        }
    }
}

// Two bytes of four as float16: 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ half2 bytes_as_half2(unsigned bytes, int which) {
    half2 pair;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(__byte_perm(bytes, 0x64646464, which)), "r"(0x64006400));
    return pair;
}

// Two numbers' high halves; the low ones, scaled up, in low.
__device__ __forceinline__ half2 split_half2(float a, float b, half2 &low) {
    const half2 high = pack_half2(a, b);
    low = pack_half2(LOW_SCALE * (a - float(low_half(high))), LOW_SCALE * (b - float(high_half(high))));
    return high;
}

__device__ __forceinline__ void store(const Piece &piece, unsigned char *place) {
    if constexpr (BYTES) {
        *(uint4 *)place = {bytes_as_half2(piece.word[0], 0x4140), bytes_as_half2(piece.word[0], 0x4342),
                           bytes_as_half2(piece.word[1], 0x4140), bytes_as_half2(piece.word[1], 0x4342)};
    } else {
        half2 high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            high[i] = split_half2(__uint_as_float(piece.word[2 * i]), __uint_as_float(piece.word[2 * i + 1]), low[i]);
        *(uint4 *)place = {high[0], high[1], high[2], high[3]};
        *(uint4 *)(place + X_PART_BYTES) = {low[0], low[1], low[2], low[3]};
    }
}

// Waits until the walk's stage may be filled, and asks for its weights, if that was not done at the beginning.
__device__ __forceinline__ void free_stage(const Walk &at, const unsigned char *w, int t) {
    if (at.step < STAGES) return;
    mbarrier_wait(empty() + at.ring.stage, at.ring.phase ^ 1);
    if (t == 0) bring_weights(at, w);
}

__device__ __forceinline__ void publish(const Walk &at, int t) {
    fence_proxy_async();
    __syncwarp();
    if (t % 32 == 0) mbarrier_arrive(full() + at.ring.stage);
}

// Images that are stored as they are: the copy engine of each thread brings them, LAG steps are on their way.
__device__ __forceinline__ void produce_copies(const INPUT *x, const unsigned char *w, int rows, int t) {
    Walk at, done;
    while (done.goes_on()) {
        if (at.goes_on()) {
            free_stage(at, w, t);
            unsigned char *place = at.memory_of_stage() + W_BYTES + t % PLANES * X_PLANE_BYTES + t / PLANES * 16;
            const bool inside = t % PLANES * 8 + at.step * DEPTH < INPUTS;
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                if (!is_place(i, t)) continue;
                const bool there = inside && t / PLANES + i * ROWS_APART < rows;
                cp_async_16_or_zeros(place + i * ROWS_APART * 16,
                                     there ? x + at.step * DEPTH + (long long)i * ROWS_APART * INPUTS : x, there);
            }
            at.advance();
        }
        cp_async_commit_group();
        if (at.step > LAG || !at.goes_on()) {
            cp_async_wait<LAG>();
            publish(done, t);
            done.advance();
        }
    }
}

// Images go through registers, where they are split or widened; those of the next steps are on their way meanwhile.
__device__ __forceinline__ void produce_pieces(const INPUT *x, const unsigned char *w, int rows, int t) {
    Piece pieces[AHEAD][PIECES];
#pragma unroll
    for (int step = 0; step < AHEAD; step++) load(pieces[step], x, step, rows, t);
#pragma unroll 1
    for (Walk at; at.goes_on(); at.advance()) {
        free_stage(at, w, t);
        unsigned char *place = at.memory_of_stage() + W_BYTES + t % PLANES * X_PLANE_BYTES + t / PLANES * 16;
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            if (is_place(i, t)) store(pieces[0][i], place + i * ROWS_APART * 16);
        publish(at, t);
#pragma unroll
        for (int step = 0; step + 1 < AHEAD; step++)
#pragma unroll
            for (int i = 0; i < PIECES; i++) pieces[step][i] = pieces[step + 1][i];
        load(pieces[AHEAD - 1], x, at.step + AHEAD, rows, t);
    }
}

__device__ __forceinline__ void produce(const INPUT *x, const unsigned char *w, int rows, int t) {
    x += (long long)(t / PLANES) * INPUTS + t % PLANES * 8;
    if constexpr (BYTES || PARTS == 2) produce_pieces(x, w, rows, t);
    else produce_copies(x, w, rows, t);
}

// The sums of a consumer's outputs, t / 32 * 16 + lane / 4 and eight more, for so many images, as wgmma.cuh has them.
template <int Columns>
__device__ __forceinline__ void multiply(float (&sums)[ROWS / 2], int t) {
    const int lane = t % 32;
    const unsigned ring = shared_address(memory);
    const unsigned long long weights = make_smem_desc(ring + t / 128 * (64 * 16), W_PLANE_BYTES, 128);
    const unsigned long long images = make_smem_desc(ring + W_BYTES, X_PLANE_BYTES, 128);
    float own[Columns / 2] = {}, cross[Columns / 2] = {};
#pragma unroll 1  // unrolled, the assembler (12.9, 13.2) takes the sums of two steps for the same
    for (Walk at; at.goes_on(); at.advance()) {
        const int stage = at.ring.stage * STAGE_BYTES;
        const unsigned long long w = advance_desc(weights, stage), x = advance_desc(images, stage);
        mbarrier_wait(full() + at.ring.stage, at.ring.phase);
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
            if (lane == 0) mbarrier_arrive(empty() + at.ring.stage);
#pragma unroll
            for (int i = 0; i < Columns / 2; i++) own[i] += partial[i];  // tensor cores cut off what they add
        } else {
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < PLANES; k += 2)
                wgmma_f16(own, advance_desc(w, k * W_PLANE_BYTES), advance_desc(x, k * X_PLANE_BYTES), false);
            wgmma_commit_group();
            wgmma_wait_group(own);
            if (lane == 0) mbarrier_arrive(empty() + at.ring.stage);
        }
    }
#pragma unroll
    for (int i = 0; i < Columns / 2; i++) sums[i] = SPLIT ? own[i] + cross[i] * (1.0f / LOW_SCALE) : own[i];
}
