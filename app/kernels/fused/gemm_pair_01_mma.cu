// Two fully connected layers, ReLU between them and an argmax after them, in one kernel, step 1: tensor cores (mma).
//
// The first product runs on tensor cores with float32 sums; a thread then multiplies the hidden values that it holds by
// its rows of the second matrix, so that they never leave the registers. With SPLIT each operand is the sum of two
// float16, the low one scaled up by 2048, and a product is high x high + (high x low + low x high) / 2048.
// From: none of the systems.
// Data: x (images, INPUTS) INPUT; w1 packed as fragments (see gemm_pair.py) float16; bias1 (HIDDEN) or null;
//       w2 (HIDDEN, CLASSES) float32; bias2 (CLASSES) or null; y (images, CLASSES) float32; labels (images) uint8.
// Launch: one block of 2 * ROWS / 16 warps per ROWS images; a warp has 16 images and half of the hidden values. The sum
//         is staged in shared memory, DEPTH of its terms at a time, STAGES ahead.
// Bound by: the first matrix, which every block reads from the L2 cache.
#include "common.cuh"
#include "async_copy.cuh"
#include "mma.cuh"
#include "shared_storage.cuh"

constexpr int DEPTH = 64, WARPS = 2 * ROWS / 16, THREADS = 32 * WARPS;
constexpr int PARTS = SPLIT ? 2 : 1;            // per operand
constexpr int PITCH = DEPTH + 8;                // numbers per staged row: no bank conflicts
constexpr int TILES = HIDDEN / 16;              // tiles per warp, eight hidden values each
constexpr int X_BYTES = PARTS * ROWS * PITCH * 2, W_BYTES = WEIGHT_PARTS * DEPTH * HIDDEN * 2;
constexpr int STEPS = INPUTS / DEPTH;
static_assert(INPUTS % DEPTH == 0 && HIDDEN % 32 == 0 && CLASSES <= 32, "the row must refuse these sizes");

struct SecondStorage {
    float w2[HIDDEN * CLASSES], bias1[HIDDEN];
    float scores[2 * ROWS * CLASSES];  // of each half of the hidden values
};
struct SharedStorage {
    unsigned char stages[STAGES * (X_BYTES + W_BYTES)];
};
static_assert(sizeof(SecondStorage) <= sizeof(SharedStorage), "the second product's data take the stages' place");

// The part of x that a thread copies in one step, 16 bytes at a time.
constexpr int WIDTH = 16 / sizeof(INPUT), CHUNKS = ROWS * DEPTH / WIDTH / THREADS;
static_assert(ROWS * DEPTH % (WIDTH * THREADS) == 0, "threads share a stage evenly");

// Stores the high halves of four numbers, and their low halves behind all high ones.
__device__ __forceinline__ void store_split(unsigned char *stage, const float4 &four) {
    const half2 a = pack_half2(four.x, four.y), b = pack_half2(four.z, four.w);
    const half2 low_a = pack_half2(LOW_SCALE * (four.x - float(low_half(a))), LOW_SCALE * (four.y - float(high_half(a))));
    const half2 low_b = pack_half2(LOW_SCALE * (four.z - float(low_half(b))), LOW_SCALE * (four.w - float(high_half(b))));
    *(uint2 *)stage = make_uint2(a, b);
    *(uint2 *)(stage + ROWS * PITCH * 2) = make_uint2(low_a, low_b);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_pair_mma(const INPUT *__restrict__ x, const uint4 *__restrict__ w1, const float *__restrict__ bias1,
                  const float *__restrict__ w2, const float *__restrict__ bias2, float *__restrict__ y,
                  unsigned char *__restrict__ labels, int images) {
    unsigned char *const stages = shared_storage<SharedStorage>().stages;
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    const int row0 = warp / 2 * 16, half = warp % 2;  // the warp's images and hidden values
    const int image0 = blockIdx.x * ROWS;

    auto stage_of = [&](int step) { return stages + step % STAGES * (X_BYTES + W_BYTES); };
    auto place_of = [&](int i) {  // row and column of a thread's i-th part of x
        const int chunk = t + i * THREADS;
        return make_int2(chunk / (DEPTH / WIDTH), chunk % (DEPTH / WIDTH) * WIDTH);
    };
    auto source_of = [&](int step, int i) {
        const int2 place = place_of(i);
        return x + (long long)min(image0 + place.x, images - 1) * INPUTS + step * DEPTH + place.y;
    };
    // begin_step requests a step's operands. What must be split passes through registers; end_step stores it.
    uint4 waiting[SPLIT ? CHUNKS : 1];
    auto begin_step = [&](int step) {
        if (step >= STEPS) return;
        unsigned char *stage = stage_of(step);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            if (SPLIT) waiting[i] = __ldg((const uint4 *)source_of(step, i));
            else cp_async_16(stage + (place_of(i).x * PITCH + place_of(i).y) * 2, source_of(step, i));
        }
        for (int i = t; i < W_BYTES / 16; i += THREADS)
            cp_async_16(stage + X_BYTES + 16 * i, w1 + step * (W_BYTES / 16) + i);
    };
    auto end_step = [&](int step) {
        if (SPLIT && step < STEPS) {
#pragma unroll
            for (int i = 0; i < CHUNKS; i++)
                store_split(stage_of(step) + (place_of(i).x * PITCH + place_of(i).y) * 2, (const float4 &)waiting[i]);
        }
        cp_async_commit_group();
    };

    float sums[TILES][4] = {}, cross[SPLIT ? TILES : 1][4] = {};
    for (int step = 0; step < STAGES - 1; step++) begin_step(step), end_step(step);
    for (int step = 0; step < STEPS; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        begin_step(step + STAGES - 1);
        const unsigned char *stage = stage_of(step);
        const uint4 *fragments = (const uint4 *)(stage + X_BYTES);
        float partial[TILES][4] = {};  // tensor cores truncate sums: long sums are continued outside
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            unsigned a[PARTS][4];
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                ldmatrix(a[part], stage + ((part * ROWS + row0 + lane % 16) * PITCH + k * 16 + lane / 16 * 8) * 2);
#pragma unroll
            for (int pair = 0; pair < TILES / 2; pair++) {
                uint4 w[WEIGHT_PARTS];
#pragma unroll
                for (int part = 0; part < WEIGHT_PARTS; part++)
                    w[part] = fragments[((part * (DEPTH / 16) + k) * TILES + half * (TILES / 2) + pair) * 32 + lane];
                const unsigned left[2] = {w[0].x, w[0].y}, right[2] = {w[0].z, w[0].w};
                mma_f16(partial[2 * pair], a[0], left);
                mma_f16(partial[2 * pair + 1], a[0], right);
                if constexpr (WEIGHT_PARTS == 2) {
                    const uint4 &low = w[WEIGHT_PARTS - 1];
                    const unsigned low_left[2] = {low.x, low.y}, low_right[2] = {low.z, low.w};
                    mma_f16(cross[2 * pair], a[0], low_left);
                    mma_f16(cross[2 * pair + 1], a[0], low_right);
                }
                if constexpr (SPLIT) {
                    mma_f16(cross[2 * pair], a[1], left);
                    mma_f16(cross[2 * pair + 1], a[1], right);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) sums[i / 4][i % 4] += partial[i / 4][i % 4];
        end_step(step + STAGES - 1);
    }

    // The second product. w2 is row-major.
    cp_async_wait<0>();
    __syncthreads();
    SecondStorage &storage = *(SecondStorage *)stages;
    float *second = storage.w2, *first_bias = storage.bias1, *scores = storage.scores;
    for (int i = t; i < HIDDEN * CLASSES; i += THREADS) second[i] = w2[i];
    for (int i = t; i < HIDDEN; i += THREADS) first_bias[i] = HAS_BIAS1 ? bias1[i] : 0.0f;
    __syncthreads();
    float own[2][CLASSES] = {};  // sums of images lane / 4 and lane / 4 + 8
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int hidden = half * (HIDDEN / 2) + i * 8 + lane % 4 * 2 + j;
            float value[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                value[r] = sums[i][2 * r + j];
                if (SPLIT) value[r] += cross[SPLIT ? i : 0][2 * r + j] * (1.0f / LOW_SCALE);
                value[r] = RELU::of(value[r] + first_bias[hidden]);
            }
#pragma unroll
            for (int c = 0; c < CLASSES; c++) {
                const float weight = second[hidden * CLASSES + c];
#pragma unroll
                for (int r = 0; r < 2; r++) own[r][c] += value[r] * weight;
            }
        }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int c = 0; c < CLASSES; c++) {
            own[r][c] += __shfl_xor_sync(~0u, own[r][c], 1);
            own[r][c] += __shfl_xor_sync(~0u, own[r][c], 2);
            if (lane % 4 == 0) scores[(half * ROWS + row0 + lane / 4 + 8 * r) * CLASSES + c] = own[r][c];
        }
    __syncthreads();
    if (t >= ROWS || image0 + t >= images) return;
    float best = 0.0f;
    int label = 0;
    for (int c = 0; c < CLASSES; c++) {
        float score = scores[t * CLASSES + c] + scores[(ROWS + t) * CLASSES + c];
        if (HAS_BIAS2) score += bias2[c];
        y[(long long)(image0 + t) * CLASSES + c] = score;
        if (c == 0 || wins(score, c, best, label)) best = score, label = c;
    }
    labels[image0 + t] = (unsigned char)label;
}
