// The kernel works like `wide-loads`, but shared memory holds two tiles of each operand: while one is multiplied, the
// values of the next are on their way from memory into registers. Pixels are numbered pooling window by pooling window,
// so that a thread pools whole windows in registers.
//
// Data: x (images, C, H, W) INPUT; w (C, K, K, M) float; bias (M) or null; y (images, M, PH, PW) OUTPUT, pooled by
//       POOL x POOL windows with stride POOL (POOL = 1: not pooled). Where PH and PW count windows over the border,
//       those pool their pixels inside the map.
// Launch: blockIdx.x = tile of BN pixels (over all images), blockIdx.y = tile of BM maps, THREADS threads.
// The sum of an output runs over c, p, q in that order, as in `direct`: both agree to the bit.
#include "common.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;  // before pooling
constexpr int WINDOW = POOL * POOL;
constexpr int PIXELS = PH * PW * WINDOW;  // computed per image: windows over the border have pixels beyond the map
constexpr int DEPTH = C * K * K;          // length of every sum
constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int STEPS = (DEPTH + BK - 1) / BK;
constexpr int FILTER_LOADS = (BK * BM + THREADS - 1) / THREADS;
constexpr int COLUMNS_APART = BN < THREADS ? BN : THREADS;  // a thread gathers columns t, t + THREADS, ...
constexpr int COLUMNS = BN / COLUMNS_APART;
constexpr int ROWS_APART = THREADS / COLUMNS_APART;
constexpr int LANES_M = BM / TM < 4 ? BM / TM : 4;          // a warp is LANES_M x LANES_N threads of the tile
constexpr int LANES_N = 32 / LANES_M;

static_assert(WINDOW == 1 || WINDOW == 4, "a pooling window must be one group of four pixels");
static_assert(TM % 4 == 0 && TN % 4 == 0, "tiles are read from shared memory four floats at a time");
static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles must cover the block tile exactly");
static_assert(THREADS % 32 == 0 && BN / TN % LANES_N == 0, "a block must consist of whole warps");
static_assert(BN % COLUMNS_APART == 0 && THREADS % COLUMNS_APART == 0, "threads must share columns out evenly");
static_assert(BK % ROWS_APART == 0, "threads must share the rows of a tile out evenly");

// The offset of tap k from the first pixel of a window. The index is uniform: one constant-cache read per warp.
__host__ __device__ constexpr int tap_offset(int k) {
    return k < DEPTH ? (k / (K * K) * H + k / K % K) * W + k % K : 0;
}
__constant__ constexpr Table<STEPS * BK, tap_offset> TAPS;

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    conv_register_tiled(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                       OUTPUT *__restrict__ y, int images) {
    __shared__ __align__(16) float filters[2][BK][BM], pixels[2][BK][BN];

    const int t = threadIdx.x;
    const int map0 = blockIdx.y * BM;
    const long long pixel0 = blockIdx.x * (long long)BN, pixel_end = (long long)images * PIXELS;

    // This thread's columns of the im2col tile: the first pixel of each window.
    const int first_row = t / COLUMNS_APART;
    const INPUT *window[COLUMNS];
    int top[COLUMNS], left[COLUMNS];  // its row and column, negative in the padding
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const long long n = pixel0 + t % COLUMNS_APART + i * COLUMNS_APART;
        const int pixel = n % PIXELS, pooled = pixel / WINDOW, in_window = pixel % WINDOW;
        const int row = pooled / PW * POOL + in_window / POOL, column = pooled % PW * POOL + in_window % POOL;
        const bool exists = n < pixel_end && (PH * POOL <= OH || row < OH) && (PW * POOL <= OW || column < OW);
        window[i] = exists ? x + n / PIXELS * (C * H * W) + row * S * W + column * S - PADDING * (W + 1) : nullptr;
        top[i] = row * S - PADDING, left[i] = column * S - PADDING;
    }

    float next_filters[FILTER_LOADS], next_pixels[BK / ROWS_APART][COLUMNS];
    auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < FILTER_LOADS; i++) {
            const int at = t + i * THREADS, k = k0 + at / BM, m = map0 + at % BM;
            next_filters[i] = at < BK * BM && k < DEPTH && m < M ? w[k * M + m] : 0.0f;
        }
#pragma unroll
        for (int r = 0; r < BK / ROWS_APART; r++) {
            const int k = k0 + r * ROWS_APART + first_row;
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                const bool inside = is_pixel<PADDING>(top[i] + k / K % K, left[i] + k % K, H, W);
                next_pixels[r][i] = inside && k < DEPTH && window[i] ? float(window[i][TAPS.at[k]]) : 0.0f;
            }
        }
    };
    auto store = [&](int stage) {
#pragma unroll
        for (int i = 0; i < FILTER_LOADS; i++) {
            const int at = t + i * THREADS;
            if (at < BK * BM) filters[stage][at / BM][at % BM] = next_filters[i];
        }
#pragma unroll
        for (int r = 0; r < BK / ROWS_APART; r++)
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
                pixels[stage][r * ROWS_APART + first_row][t % COLUMNS_APART + i * COLUMNS_APART] = next_pixels[r][i];
    };

    // This thread's outputs: maps thread_m * 4 + (BM / (TM / 4)) * group, and pixels likewise, in groups of four, so
    // that the lanes of a warp read neighbouring 16-byte words.
    const int warp = t / 32, lane = t % 32;
    const int warps_n = BN / TN / LANES_N;
    const int thread_m = warp / warps_n * LANES_M + lane / LANES_N;
    const int thread_n = warp % warps_n * LANES_N + lane % LANES_N;
    constexpr int GROUPS_M = TM / 4, GROUPS_N = TN / 4;

    float sums[TM][TN] = {};
    fetch(0);
    store(0);
    __syncthreads();
    for (int step = 0; step < STEPS; step++) {
        const int stage = step % 2;
        if (step + 1 < STEPS) fetch((step + 1) * BK);
#pragma unroll
        for (int k = 0; k < BK; k++) {
            alignas(16) float a[TM], b[TN];
#pragma unroll
            for (int g = 0; g < GROUPS_M; g++)
                *(float4 *)(a + 4 * g) = *(const float4 *)&filters[stage][k][g * (BM / GROUPS_M) + thread_m * 4];
#pragma unroll
            for (int g = 0; g < GROUPS_N; g++)
                *(float4 *)(b + 4 * g) = *(const float4 *)&pixels[stage][k][g * (BN / GROUPS_N) + thread_n * 4];
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sums[i][j] = fmaf(b[j], a[i], sums[i][j]);
        }
        if (step + 1 < STEPS) store(1 - stage);
        __syncthreads();
    }

#pragma unroll
    for (int g = 0; g < GROUPS_N; g++) {
        const long long n = pixel0 + g * (BN / GROUPS_N) + thread_n * 4;
        if (n >= pixel_end) continue;
#pragma unroll
        for (int i = 0; i < TM; i++) {
            const int m = map0 + i / 4 * (BM / GROUPS_M) + thread_m * 4 + i % 4;
            if (m >= M) continue;
            const float shift = HAS_BIAS ? bias[m] : 0.0f;
            alignas(16) float out[4];
#pragma unroll
            for (int j = 0; j < 4; j++) out[j] = epilogue<HAS_BIAS, ACTIVATION>(sums[i][4 * g + j], shift);
            OUTPUT *map = y + (n / PIXELS * M + m) * (PH * PW);
            if constexpr (WINDOW == 4) {
                const int at = n % PIXELS / 4;
                map[at] = OUTPUT(pool_window<POOL, POOL_IS_MAX, PH, PW, OH, OW>(at / PW, at % PW, out, POOL));
            } else if constexpr (PIXELS % 4 == 0) {
                store4(map + n % PIXELS, out);
            } else {
                for (int j = 0; j < 4 && n + j < pixel_end; j++)
                    y[((n + j) / PIXELS * M + m) * PIXELS + (n + j) % PIXELS] = OUTPUT(out[j]);
            }
        }
    }
}
