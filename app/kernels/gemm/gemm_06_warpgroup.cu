// The matrix product by warpgroup tensor-core instructions, fed by warps that run ahead: step 6, Hopper alone.
//
// What changed since step 4: outputs are the rows of the product and images its columns, so that a block may have any
// multiple of eight images: 80, and 10,000 are one block per SM. Warps have roles: consumers multiply, producers feed
// them, and only a ring of stages with barriers connects them. In float16x2 a number of an image is the sum of two
// float16, split on the way to shared memory; a weight, too, unless it is exact in float16 (WEIGHT_PARTS). The tensor
// cores cut off what they add: with two parts each stage is summed there, the stages in the usual way.
// From: none of the systems.
// Data: x (images, INPUTS) INPUT; w packed (see warpgroup.py) float16; factors (OUTPUTS) from sums to values; bias (OUTPUTS) or
//       null; y (images, OUTPUTS) OUTPUT.
// Launch: a block for ROWS images and TILE outputs: a warpgroup for 64 outputs, and 128 producer threads.
// Bound by: what the L2 cache delivers: every block reads all weights.
#include "bulk_copy.cuh"
#include "common.cuh"
#include "wgmma.cuh"

constexpr int DEPTH = 64, PLANES = DEPTH / 8;  // terms of the sum at a time, eight a plane
constexpr int STEPS = (INPUTS + DEPTH - 1) / DEPTH;
constexpr int W_PLANE_BYTES = TILE * 16, W_PART_BYTES = PLANES * W_PLANE_BYTES, W_BYTES = WEIGHT_PARTS * W_PART_BYTES;
constexpr int X_PLANE_BYTES = (ROWS + 1) * 16;  // odd multiples of 16: a row is stored to all planes without conflicts
constexpr int X_PART_BYTES = PLANES * X_PLANE_BYTES;
constexpr int STAGE_BYTES = W_BYTES + PARTS * X_PART_BYTES;
constexpr int CONSUMERS = 2 * TILE, PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;
constexpr int FEW = 8;  // images that fewer columns serve
constexpr bool SPLIT = PARTS == 2;
static_assert(STAGES * (STAGE_BYTES + 16) == SHARED_BYTES, "the row must lay memory out alike");

extern __shared__ __align__(128) unsigned char memory[];
__device__ __forceinline__ unsigned long long *full() { return (unsigned long long *)(memory + STAGES * STAGE_BYTES); }
__device__ __forceinline__ unsigned long long *empty() { return full() + STAGES; }

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

constexpr int ROWS_APART = PRODUCERS / PLANES, PIECES = (ROWS + ROWS_APART - 1) / ROWS_APART;
struct Piece {
    uint4 word[PARTS];
};
__device__ __forceinline__ bool exists(int i, int rows, int t) { return t / PLANES + i * ROWS_APART < rows; }

__device__ __forceinline__ void load(Piece (&pieces)[PIECES], const INPUT *x, int rows, int t, bool inside) {
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint4 *source = (const uint4 *)(x + (long long)i * ROWS_APART * INPUTS);
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            pieces[i].word[j] = inside && exists(i, rows, t) ? __ldg(source + j) : make_uint4(0, 0, 0, 0);
    }
}
__device__ __forceinline__ half2 split_half2(unsigned a_bits, unsigned b_bits, half2 &low) {
    const float a = __uint_as_float(a_bits), b = __uint_as_float(b_bits);
    const half2 high = pack_half2(a, b);
    low = pack_half2(LOW_SCALE * (a - float(low_half(high))), LOW_SCALE * (b - float(high_half(high))));
    return high;
}
__device__ __forceinline__ void store(const Piece &piece, unsigned char *place) {
    if (!SPLIT) {
        *(uint4 *)place = piece.word[0];
        return;
    }
    const uint4 &l = piece.word[0], &r = piece.word[PARTS - 1];
    uint4 low;
    *(uint4 *)place = {split_half2(l.x, l.y, low.x), split_half2(l.z, l.w, low.y), split_half2(r.x, r.y, low.z),
                       split_half2(r.z, r.w, low.w)};
    *(uint4 *)(place + X_PART_BYTES) = low;
}

// Images that need no splitting: the copy engine of each thread brings them, LAG steps are on their way.
__device__ __forceinline__ void produce_copies(const INPUT *x, const unsigned char *w, int rows, int t) {
    const int k = t % PLANES * 8;
    x += (long long)(t / PLANES) * INPUTS + k;
    Walk at, done;
    for (; done.goes_on(); ) {
        if (at.goes_on()) {
            if (at.step >= STAGES) {
                mbarrier_wait(empty() + at.ring.stage, at.ring.phase ^ 1);
                if (t == 0) bring_weights(at, w);
            }
            unsigned char *place = at.memory_of_stage() + W_BYTES + t % PLANES * X_PLANE_BYTES + t / PLANES * 16;
            const bool inside = k + at.step * DEPTH < INPUTS;
#pragma unroll
            for (int j = 0; j < PIECES; j++)
                if (t / PLANES + j * ROWS_APART < ROWS) {
                    const bool there = inside && exists(j, rows, t);
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(place + j * ROWS_APART * 16)),
                                 "l"(there ? x + at.step * DEPTH + (long long)j * ROWS_APART * INPUTS : x), "r"(there ? 16 : 0)
                                 : "memory");
                }
            at.advance();
        }
        cp_async_commit_group();
        if (at.step > LAG || !at.goes_on()) {
            cp_async_wait<LAG>();
            fence_proxy_async();
            __syncwarp();
            if (t % 32 == 0) mbarrier_arrive(full() + done.ring.stage);
            done.advance();
        }
    }
}

// Images go through registers, where they are split; the next step's are on their way meanwhile.
__device__ __forceinline__ void produce(const INPUT *x, const unsigned char *w, int rows, int t) {
    const int k = t % PLANES * 8;
    x += (long long)(t / PLANES) * INPUTS + k;
    Piece pieces[PIECES];
    load(pieces, x, rows, t, k < INPUTS);
#pragma unroll 1
    for (Walk at; at.goes_on(); at.advance()) {
        if (at.step >= STAGES) {
            mbarrier_wait(empty() + at.ring.stage, at.ring.phase ^ 1);
            if (t == 0) bring_weights(at, w);
        }
        unsigned char *place = at.memory_of_stage() + W_BYTES + t % PLANES * X_PLANE_BYTES + t / PLANES * 16;
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            if (t / PLANES + i * ROWS_APART < ROWS) store(pieces[i], place + i * ROWS_APART * 16);
        fence_proxy_async();
        __syncwarp();
        if (t % 32 == 0) mbarrier_arrive(full() + at.ring.stage);
        const int coming = (at.step + 1) * DEPTH;
        if (at.step + 1 < STEPS) load(pieces, x + coming, rows, t, k + coming < INPUTS);
    }
}

template <int Columns>
__device__ __forceinline__ void multiply(OUTPUT *y, const float *factors, const float *bias, int first, int rows, int t) {
    const int lane = t % 32, output = t / 32 * 16 + lane / 4;  // and eight more
    const unsigned ring = shared_address(memory);
    const unsigned long long weights = make_smem_desc(ring + t / 128 * (64 * 16), W_PLANE_BYTES, 128);
    const unsigned long long images = make_smem_desc(ring + W_BYTES, X_PLANE_BYTES, 128);
    float sums[Columns / 2] = {}, cross[Columns / 2] = {};
#pragma unroll 1  // unrolled, the assembler (12.9, 13.2) takes the sums of two steps for the same
    for (Walk at; at.goes_on(); at.advance()) {
        const int stage = at.ring.stage * STAGE_BYTES;
        const unsigned long long w = advance_desc(weights, stage), x = advance_desc(images, stage);
        mbarrier_wait(full() + at.ring.stage, at.ring.phase);
        if (SPLIT) {
            float partial[Columns / 2] = {};
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < PLANES; k += 2) {
                const unsigned long long high_w = advance_desc(w, k * W_PLANE_BYTES);
                const unsigned long long high_x = advance_desc(x, k * X_PLANE_BYTES);
                wgmma_f16(partial, high_w, high_x, k == 0);
                if (WEIGHT_PARTS == 2) wgmma_f16(cross, advance_desc(high_w, W_PART_BYTES), high_x, false);
                wgmma_f16(cross, high_w, advance_desc(high_x, X_PART_BYTES), false);
            }
            wgmma_commit_group();
            wgmma_wait_group(partial, cross);
            if (lane == 0) mbarrier_arrive(empty() + at.ring.stage);
#pragma unroll
            for (int i = 0; i < Columns / 2; i++) sums[i] += partial[i];  // tensor cores cut off what they add
        } else {
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < PLANES; k += 2)
                wgmma_f16(sums, advance_desc(w, k * W_PLANE_BYTES), advance_desc(x, k * X_PLANE_BYTES), false);
            wgmma_commit_group();
            wgmma_wait_group(sums);
            if (lane == 0) mbarrier_arrive(empty() + at.ring.stage);
        }
    }
#pragma unroll
    for (int i = 0; i < Columns / 2; i++) {
        const int o = first + output + i % 4 / 2 * 8, image = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (image >= rows || o >= OUTPUTS) continue;
        const float sum = SPLIT ? sums[i] + cross[i] * (1.0f / LOW_SCALE) : sums[i];
        const float value = sum * __ldg(factors + o) + (HAS_BIAS ? __ldg(bias + o) : 0.0f);
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
    if (t == CONSUMERS) {
        for (int stage = 0; stage < STAGES; stage++)
            mbarrier_init(full() + stage, 1 + PRODUCERS / 32), mbarrier_init(empty() + stage, CONSUMERS / 32);
        fence_mbarrier_init();
        for (Walk at; at.step < STAGES && at.goes_on(); at.advance()) bring_weights(at, w);
    }
    __syncthreads();
    if (group == CONSUMERS / 128) {
        if constexpr (THREADS >= 512) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (SPLIT) produce(x, w, rows, t - CONSUMERS);
        else produce_copies(x, w, rows, t - CONSUMERS);
    } else {
        if constexpr (THREADS >= 512) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        if (rows > FEW) multiply<ROWS>(y, factors, bias, first, rows, t);
        else multiply<FEW>(y, factors, bias, first, rows, t);
    }
}
