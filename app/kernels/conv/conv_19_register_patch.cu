// The kernel works like `async-copies`, but a patch holds whole pooling windows and pools them in registers, and one
// store writes several neighbouring outputs. Pixels stored as bytes are converted in batches: a thread starts all loads
// of a batch before it waits for the first.
//
// Data: x (images, C, H, W) INPUT; w packed (blocks of BM maps, C, K, K, BM) float, padded with zero maps; bias (M) or
//       null; y (images, M, PH, PW) OUTPUT, pooled by POOL x POOL windows with stride POOL (POOL = 1: not pooled).
//       Where PH and PW count windows over the border, those pool their pixels inside the map.
// Launch: blockIdx.x = tile of TILE_R x TILE_C patches of IMAGES images, blockIdx.y = block of BM = GROUPS * TM maps.
//         A thread is one patch and one group of TM maps; neighbouring threads are neighbouring patches of a row.
// The sum of an output runs over c, p, q in that order, as in `direct`: both agree to the bit.
#include "async_copy.cuh"
#include "common.cuh"
#include "shared_storage.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;  // before pooling
constexpr int PATCHES_R = (PH * POOL + TR - 1) / TR, PATCHES_C = (PW * POOL + TC - 1) / TC;  // per image
constexpr int TILES_R = (PATCHES_R + TILE_R - 1) / TILE_R, TILES_C = (PATCHES_C + TILE_C - 1) / TILE_C;
constexpr int PATCHES = IMAGES * TILE_R * TILE_C;  // per block
constexpr int THREADS = (PATCHES * GROUPS + 31) / 32 * 32;
constexpr int BM = GROUPS * TM;
constexpr int STEPS = C / CK;

constexpr int VECTOR = TC * S % 4 == 0 ? 4 : TC * S % 2 == 0 ? 2 : 1;  // floats a load of the input tile
constexpr int ROW = ((TC - 1) * S + K + VECTOR - 1) / VECTOR * VECTOR;  // floats read for one row of a patch
constexpr int IN_R = (TILE_R * TR - 1) * S + K;
constexpr int PITCH = ((TILE_C * TC - 1) * S + K + VECTOR - 1) / VECTOR * VECTOR;
constexpr int IN_FLOATS = IMAGES * CK * IN_R * PITCH;
constexpr int FILTER_FLOATS = CK * K * K * BM;
constexpr int FILTER_START = (IN_FLOATS + ROW + 3) / 4 * 4;  // a read of the last row may go beyond its end
constexpr int STAGE_FLOATS = FILTER_START + (FILTER_FLOATS + 3) / 4 * 4, STAGES = STEPS > 1 ? 2 : 1;
constexpr int LOADS = (IN_FLOATS + THREADS - 1) / THREADS;
constexpr bool KEEP_OFFSETS = STEPS > 1 && LOADS <= 12;  // in registers, else recomputed for each stage
constexpr int BATCH = LOADS <= 16 ? LOADS : 16;
constexpr bool SAME_TYPE = same_type<INPUT, float>;
constexpr int STORE = TC % 4 == 0 && OW % 4 == 0 ? 4 : TC % 2 == 0 && OW % 2 == 0 ? 2 : 1;

static_assert(C % CK == 0, "a stage must hold CK whole channels");
static_assert(TR % POOL == 0 && TC % POOL == 0, "a patch must hold whole pooling windows");

struct SharedStorage {
    float stages[STAGES * STAGE_FLOATS];  // of inputs and filters each
};

// Loads Count floats from an address that is a multiple of the widest load that divides Count.
template <int Width, int Count>
__device__ __forceinline__ void read(float (&values)[Count], const float *from) {
#pragma unroll
    for (int i = 0; i < Count; i += Width) {
        if (Width == 4) *(float4 *)(values + i) = *(const float4 *)(from + i);
        if (Width == 2) *(float2 *)(values + i) = *(const float2 *)(from + i);
        if (Width == 1) values[i] = from[i];
    }
}

// The offset of element `at` of a block's input tile from the block's first image. Beyond the edges that is the last
// pixel's, which only outputs beyond the edge read; with padding it is -1, for a zero.
__device__ __forceinline__ int source(int at, int row0, int column0, int last_image) {
    const int column = min(column0 + at % PITCH, W - 1), row = min(row0 + at / PITCH % IN_R, H - 1);
    const int channel = at / (PITCH * IN_R) % CK, image = min(at / (PITCH * IN_R * CK), last_image);
    const int place = ((image * C + channel) * H + row) * W + column;
    return is_pixel<PADDING>(row0 + at / PITCH % IN_R, column0 + at % PITCH, H, W) ? place : -1;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    conv_register_patch(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                        OUTPUT *__restrict__ y, int images) {
    float *const stages = shared_storage<SharedStorage>().stages;
    const int t = threadIdx.x;
    const int tile = blockIdx.x % (TILES_R * TILES_C);
    const long long image0 = (long long)(blockIdx.x / (TILES_R * TILES_C)) * IMAGES;
    const int tile_row = tile / TILES_C * (TILE_R * TR), tile_column = tile % TILES_C * (TILE_C * TC);
    const int last_image = min((long long)IMAGES, images - image0) - 1;
    const INPUT *block_x = x + image0 * (C * H * W);
    const float *block_w = w + (long long)blockIdx.y * (C * K * K * BM);

    auto source_of = [&](int i) {
        return source(t + i * THREADS, tile_row * S - PADDING, tile_column * S - PADDING, last_image);
    };
    int offsets[KEEP_OFFSETS ? LOADS : 1];
    if (KEEP_OFFSETS)
#pragma unroll
        for (int i = 0; i < (KEEP_OFFSETS ? LOADS : 1); i++) offsets[i] = source_of(i);
    auto fetch = [&](int step) {
        float *inputs = stages + step % STAGES * STAGE_FLOATS, *filters = inputs + FILTER_START;
        const INPUT *from = block_x + step * (CK * H * W);
        for (int first = 0; first < LOADS; first += BATCH) {
            // Values to convert pass through registers: all loads of a batch are issued before the first is used.
            INPUT loaded[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int at = t + (first + i) * THREADS;
                const int offset = KEEP_OFFSETS ? offsets[KEEP_OFFSETS ? i : 0] : source_of(first + i);
                const INPUT *element = from + offset;
                const bool exists = PADDING == 0 || offset >= 0;
                if (!SAME_TYPE) {
                    loaded[i] = exists ? *element : INPUT(0);
                } else if (at < IN_FLOATS) {
                    if (exists) cp_async(inputs + at, element);
                    else inputs[at] = 0;
                }
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int at = t + (first + i) * THREADS;
                if (!SAME_TYPE && at < IN_FLOATS) inputs[at] = float(loaded[i]);
            }
        }
        const float *block_taps = block_w + step * FILTER_FLOATS;
        if (BM % 4 == 0)
            for (int at = t * 4; at < FILTER_FLOATS; at += THREADS * 4) cp_async_16(filters + at, block_taps + at);
        else
            for (int at = t; at < FILTER_FLOATS; at += THREADS) cp_async(filters + at, block_taps + at);
        cp_async_commit_group();
    };

    const int group = t / PATCHES, patch = t % PATCHES;
    const int patch_row = patch / TILE_C % TILE_R * TR, patch_column = patch % TILE_C * TC;
    const int image = patch / (TILE_C * TILE_R);
    const bool active = group < GROUPS;
    float sums[TM][TR][TC] = {};

    fetch(0);
    for (int step = 0; step < STEPS; step++) {
        if (step + 1 < STEPS) {
            fetch(step + 1);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        const float *inputs = stages + step % STAGES * STAGE_FLOATS, *filters = inputs + FILTER_START;
        if (active)
#pragma unroll 1
            for (int cp = 0; cp < CK * K; cp++) {
                const int channel = cp / K, p = cp % K;
                const float *rows =
                    inputs + ((image * CK + channel) * IN_R + patch_row * S + p) * PITCH + patch_column * S;
                alignas(16) float values[TR][ROW];
#pragma unroll
                for (int r = 0; r < TR; r++) read<VECTOR>(values[r], rows + r * S * PITCH);
#pragma unroll
                for (int q = 0; q < K; q++) {
                    alignas(16) float taps[TM];
                    read<TM % 4 == 0 ? 4 : TM % 2 == 0 ? 2 : 1>(taps, filters + (cp * K + q) * BM + group * TM);
#pragma unroll
                    for (int m = 0; m < TM; m++)
#pragma unroll
                        for (int r = 0; r < TR; r++)
#pragma unroll
                            for (int c = 0; c < TC; c++)
                                sums[m][r][c] = fmaf(values[r][c * S + q], taps[m], sums[m][r][c]);
                }
            }
        __syncthreads();
    }

    if (!active || image > last_image) return;
#pragma unroll
    for (int m = 0; m < TM; m++) {
        const int map = blockIdx.y * BM + group * TM + m;
        if (map >= M) break;
        const float shift = HAS_BIAS ? bias[map] : 0.0f;
        OUTPUT *out = y + ((image0 + image) * M + map) * (PH * PW);
#pragma unroll
        for (int r = 0; r < TR; r++)
#pragma unroll
            for (int c = 0; c < TC; c++) sums[m][r][c] = epilogue<HAS_BIAS, ACTIVATION>(sums[m][r][c], shift);
#pragma unroll
        for (int r = 0; r < TR; r += POOL) {
            const int row = (tile_row + patch_row + r) / POOL;
            if (row >= PH) break;
#pragma unroll
            for (int c = 0; c < TC; c += POOL == 1 ? STORE : POOL) {
                const int column = (tile_column + patch_column + c) / POOL;
                if (column >= PW) break;
                if (POOL > 1) {
                    out[row * PW + column] =
                        OUTPUT(pool_window<POOL, POOL_IS_MAX, PH, PW, OH, OW>(row, column, &sums[m][r][c], TC));
                } else if (STORE == 4) {
                    store4(out + row * PW + column, &sums[m][r][c]);
                } else if (STORE == 2) {
                    store2(out + row * PW + column, &sums[m][r][c]);
                } else {
                    out[row * PW + column] = OUTPUT(sums[m][r][c]);
                }
            }
        }
    }
}
