// The kernel computes the same matrix product as `implicit-gemm`, but by the mma instructions of tensor cores. Operands
// are float16, float32 rounded to tfloat32, or float32 split into two tfloat32 (SPLIT); sums are float32.
//
// Data: x (images, C, H, W) INPUT; w packed as fragments (see tensor_core.py) WEIGHT; bias (M) or null;
//       y (images, M, PH, PW) OUTPUT.
// Launch: blockIdx.x = tile of ROWS x COLUMNS pixels of IMAGES images, blockIdx.y = block of 16 * MT * WARPS_M maps.
//         WARPS_M x WARPS_N warps; channels are staged CK at a time.
#include "async_copy.cuh"
#include "common.cuh"
#include "mma.cuh"
#include "shared_storage.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
constexpr int TILES_R = (OH + ROWS - 1) / ROWS, TILES_C = (OW + COLUMNS - 1) / COLUMNS;
constexpr int PIXELS = IMAGES * ROWS * COLUMNS;  // per block
constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int M_TILES = MT * WARPS_M;  // 16 maps each
constexpr int STEPS = (C + CK - 1) / CK;

constexpr bool HALF = same_type<WEIGHT, float16>;
constexpr bool PAIRS_OF_PIXELS = HALF && C == 1;  // in a word; else pairs of channels, or single values
constexpr int PLANES = HALF && C > 1 ? (CK + 1) / 2 : CK;
constexpr int TAPS_Q = PAIRS_OF_PIXELS ? (K + 1) / 2 : K;  // words in a row of a filter
constexpr int K_STEPS = (PLANES * K * TAPS_Q + 7) / 8;     // eight words each

// Pixels are assigned to the columns of GROUP neighbouring tiles such that a lane gets RUN neighbouring ones.
constexpr int GROUP = NT % 4 == 0 && OW % 8 == 0 && COLUMNS % 8 == 0   ? 4
                      : NT % 2 == 0 && OW % 4 == 0 && COLUMNS % 4 == 0 ? 2
                                                                       : 1;
constexpr int RUN = 2 * GROUP;
constexpr bool EVEN = OW % RUN == 0 && COLUMNS % RUN == 0;  // runs are within a row and aligned

constexpr int IN_R = (ROWS - 1) * S + K, PITCH = (COLUMNS - 1) * S + K;
// The distance of planes: the 4 x 8 words of a fragment use all banks (with GROUP 2, half of them).
constexpr int APART = GROUP == 4 ? 2 : GROUP == 2 ? 18 : 8;
constexpr int PLANE = (IN_R * PITCH + 31 - APART) / 32 * 32 + APART;
constexpr int PARTS = SPLIT && same_type<INPUT, float32> ? 2 : 1;  // bytes and float16 are exact in one tfloat32
constexpr int IN_PART = IMAGES * PLANES * PLANE, IN_WORDS = PARTS * IN_PART;
constexpr int FILTER_PART = K_STEPS * M_TILES * 128, FILTER_WORDS = (SPLIT ? 2 : 1) * FILTER_PART;
constexpr int LOADS = (IMAGES * PLANES * IN_R * PITCH + THREADS - 1) / THREADS;
constexpr int BATCHES = (LOADS + 9) / 10, BATCH = (LOADS + BATCHES - 1) / BATCHES;  // at most ten loads each

static_assert(PLANE >= IN_R * PITCH, "a plane must hold its part of the tile");
static_assert(PIXELS <= 8 * NT * WARPS_N, "the warps must cover the tile");

// The tensor cores sum split operands for so many steps; ordinary additions add these sums.
constexpr int CUT_STEPS = SPLIT ? 2 : K_STEPS;
constexpr bool FEW_TERMS = C * K * K < 16;  // otherwise products of two low parts are below the sum's rounding errors
constexpr int VALUE_PITCH = PIXELS / 2 * 2 + 1;  // odd, so that maps are in different banks

struct Operands {
    unsigned filters[FILTER_WORDS];
    unsigned inputs[IN_WORDS];
    int offsets[8 * K_STEPS];
};
union SharedStorage {
    Operands operands;
    float values[POOL > 1 ? 16 * M_TILES * VALUE_PITCH : 1];  // to be pooled
};

// The offset of a tap's word from the first word of its window.
__host__ __device__ constexpr int word_offset(int i) {
    const int tap = i / PLANES;
    const int offset = i % PLANES * PLANE + tap / TAPS_Q * PITCH + tap % TAPS_Q * (PAIRS_OF_PIXELS ? 2 : 1);
    return i < PLANES * K * TAPS_Q ? offset : 0;
}
__constant__ constexpr Table<8 * K_STEPS, word_offset> WORD_OFFSETS;

__device__ __forceinline__ unsigned word(INPUT low, INPUT high) {
    if constexpr (!HALF) return to_tf32(float(low));
    else if constexpr (same_type<INPUT, float16>) return pack_half2(low, high);
    else return pack_half2(float(low), float(high));
}

// Adds the products with a low part, for 16 maps.
__device__ __forceinline__ void multiply_low(float (&sums)[NT][4], const unsigned (&a)[4], const uint4 &low,
                                             const unsigned (&b)[NT][2], const unsigned (&low_b)[NT][2]) {
    const unsigned low_a[4] = {low.x, low.y, low.z, low.w};
#pragma unroll
    for (int n = 0; n < NT; n++) mma_tf32(sums[n], low_a, b[n]);
#pragma unroll
    for (int n = 0; PARTS == 2 && n < NT; n++) {
        if (FEW_TERMS) mma_tf32(sums[n], low_a, low_b[n]);
        mma_tf32(sums[n], a, low_b[n]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    conv_tensor_core(const INPUT *__restrict__ x, const WEIGHT *__restrict__ w, const float *__restrict__ bias,
                     OUTPUT *__restrict__ y, int images) {
    uint4 *filters = (uint4 *)shared_storage<SharedStorage>().operands.filters;
    unsigned *inputs = (unsigned *)filters + FILTER_WORDS;
    int *offsets = (int *)(inputs + IN_WORDS);

    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    const int warp_m = warp / WARPS_N * MT, warp_n = warp % WARPS_N * NT;  // in tiles
    const int tile = blockIdx.x % (TILES_R * TILES_C);
    const long long image0 = (long long)(blockIdx.x / (TILES_R * TILES_C)) * IMAGES;
    const int row0 = tile / TILES_C * ROWS, column0 = tile % TILES_C * COLUMNS;
    const int last_image = min((long long)IMAGES, images - image0) - 1;
    const INPUT *block_x = x + image0 * (C * H * W);

    for (int i = t; i < 8 * K_STEPS; i += THREADS) offsets[i] = WORD_OFFSETS.at[i];

    // The first word of the window of each pixel whose fragments this lane reads.
    const unsigned *window[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int column_of_b = lane / 4;
        const int in_group = column_of_b / 2 * RUN + n % GROUP * 2 + column_of_b % 2;
        const int pixel = min((warp_n + n / GROUP * GROUP) * 8 + in_group, PIXELS - 1);
        const int row = pixel / COLUMNS % ROWS, column = pixel % COLUMNS, image = pixel / (COLUMNS * ROWS);
        window[n] = inputs + image * (PLANES * PLANE) + row * S * PITCH + column * S;
    }

    float sums[MT][NT][4] = {}, cross[MT][NT][4] = {};  // cross: products of a high and a low part
    for (int step = 0; step < STEPS; step++) {
        __syncthreads();  // all warps have read the step before
        const uint4 *from = (const uint4 *)w + ((long long)blockIdx.y * STEPS + step) * (FILTER_WORDS / 4);
        for (int i = t; i < FILTER_WORDS / 4; i += THREADS) cp_async_16(filters + i, from + i);
        cp_async_commit_group();
        for (int first = 0; first < LOADS; first += BATCH) {
            INPUT low[BATCH], high[BATCH];  // all loads of a batch are issued before the first is used
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int at = t + (first + i) * THREADS;
                const int h = row0 * S - PADDING + at / PITCH % IN_R, row = min(h, H - 1);
                const int column = column0 * S - PADDING + at % PITCH;
                const int plane = at / (PITCH * IN_R) % PLANES, image = min(at / (PITCH * IN_R * PLANES), last_image);
                const int channel = step * CK + (HALF && C > 1 ? 2 : 1) * plane;
                const INPUT *line = block_x + ((image * C + min(channel, C - 1)) * H + row) * W;
                const bool inside = is_pixel<PADDING>(h, column, H, W), next = is_pixel<PADDING>(h, column + 1, H, W);
                low[i] = channel < C && inside ? line[min(column, W - 1)] : INPUT(0);
                if (PAIRS_OF_PIXELS) high[i] = next ? line[min(column + 1, W - 1)] : INPUT(0);
                else if (HALF) high[i] = channel + 1 < C && inside ? line[H * W + min(column, W - 1)] : INPUT(0);
                else high[i] = low[i];
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int at = t + (first + i) * THREADS;
                unsigned *place = inputs + at / (PITCH * IN_R) * PLANE + at % (PITCH * IN_R);
                if (at >= IMAGES * PLANES * IN_R * PITCH) continue;
                if constexpr (PARTS == 2) *place = split_tf32(low[i], place[IN_PART]);
                else *place = word(low[i], high[i]);
            }
        }
        cp_async_wait<0>();
        __syncthreads();

#pragma unroll 1
        for (int k0 = 0; k0 < K_STEPS; k0 += CUT_STEPS) {
            float partial[MT][NT][4] = {};
            float(&into)[MT][NT][4] = SPLIT ? partial : sums;
#pragma unroll 2
            for (int k = k0; k < min(k0 + CUT_STEPS, K_STEPS); k++) {
                const int near = offsets[k * 8 + lane % 4], far = offsets[k * 8 + lane % 4 + 4];
                unsigned b[NT][2], low_b[NT][2];
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    b[n][0] = window[n][near], b[n][1] = window[n][far];
                    if (PARTS == 2) low_b[n][0] = window[n][IN_PART + near], low_b[n][1] = window[n][IN_PART + far];
                }
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    const uint4 *own = filters + (k * M_TILES + warp_m + m) * 32 + lane;
                    const uint4 fragment = own[0];
                    const unsigned a[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
                    if constexpr (SPLIT) multiply_low(cross[m], a, own[FILTER_PART / 4], b, low_b);
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        if constexpr (HALF) mma_f16(into[m][n], a, b[n]);
                        else mma_tf32(into[m][n], a, b[n]);
                    }
                }
            }
            if constexpr (SPLIT) add(sums, partial);
        }
    }
    if constexpr (SPLIT) add(sums, cross);

    const int map0 = (blockIdx.y * M_TILES + warp_m) * 16 + lane / 4;
    if constexpr (POOL > 1) {
        const int block_map = blockIdx.y * M_TILES * 16;
        float *values = shared_storage<SharedStorage>().values;
        __syncthreads();  // all operands have been read
#pragma unroll
        for (int m = 0; m < 2 * MT; m++) {
            const int map = map0 + 8 * m;
            const float shift = HAS_BIAS && map < M ? bias[map] : 0.0f;
#pragma unroll
            for (int j = 0; j < 2 * NT; j++) {
                const int pixel = (warp_n + j / RUN * GROUP) * 8 + lane % 4 * RUN + j % RUN;
                const float sum = sums[m / 2][j / 2][m % 2 * 2 + j % 2];
                if (pixel < PIXELS) values[(map - block_map) * VALUE_PITCH + pixel] = epilogue<HAS_BIAS, ACTIVATION>(sum, shift);
            }
        }
        __syncthreads();
        constexpr int DOWN = (ROWS + POOL - 1) / POOL, ACROSS = (COLUMNS + POOL - 1) / POOL;  // windows of an image
        for (int i = t; i < 16 * M_TILES * IMAGES * DOWN * ACROSS; i += THREADS) {
            const int map = i / (IMAGES * DOWN * ACROSS), image = i / (DOWN * ACROSS) % IMAGES;
            const int down = i / ACROSS % DOWN, across = i % ACROSS;
            const int row = row0 / POOL + down, column = column0 / POOL + across;
            if (block_map + map >= M || image > last_image || row >= PH || column >= PW) continue;
            const float *window = values + map * VALUE_PITCH + (image * ROWS + down * POOL) * COLUMNS + across * POOL;
            y[(((image0 + image) * M + block_map + map) * PH + row) * PW + column] =
                OUTPUT(pool_window<POOL, POOL_IS_MAX, PH, PW, OH, OW>(row, column, window, COLUMNS));
        }
        return;
    }

    // A lane holds RUN neighbouring pixels of two maps in each GROUP of tiles.
    OUTPUT *block_y = y + image0 * (M * OH * OW) + map0 * (OH * OW);
    int places[NT / GROUP][RUN > 2 ? 1 : 2];  // offset of a run, or of both its pixels; negative: beyond the edge
#pragma unroll
    for (int n = 0; n < NT / GROUP; n++)
#pragma unroll
        for (int j = 0; j < (RUN > 2 ? 1 : 2); j++) {
            const int pixel = (warp_n + n * GROUP) * 8 + lane % 4 * RUN + j;
            const int image = pixel / (COLUMNS * ROWS);
            const int row = row0 + pixel / COLUMNS % ROWS, column = column0 + pixel % COLUMNS;
            const bool inside = pixel < PIXELS && image <= last_image && row < OH && column < OW;
            places[n][j] = inside ? image * (M * OH * OW) + row * OW + column : -1;
        }
#pragma unroll
    for (int m = 0; m < 2 * MT; m++) {
        if (map0 + 8 * m >= M) break;
        const float shift = HAS_BIAS ? bias[map0 + 8 * m] : 0.0f;
        OUTPUT *map = block_y + m * (8 * OH * OW);
#pragma unroll
        for (int n = 0; n < NT / GROUP; n++) {
            float out[RUN];
#pragma unroll
            for (int j = 0; j < RUN; j++)
                out[j] = epilogue<HAS_BIAS, ACTIVATION>(sums[m / 2][n * GROUP + j / 2][m % 2 * 2 + j % 2], shift);
            if (EVEN) {
                if (places[n][0] >= 0) store_run(map + places[n][0], out);
            } else {
#pragma unroll
                for (int j = 0; j < 2; j++)
                    if (places[n][j] >= 0) map[places[n][j]] = OUTPUT(out[j]);
            }
        }
    }
}
