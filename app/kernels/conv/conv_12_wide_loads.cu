// The kernel works like `register-square`, but a thread's maps and pixels come in groups of four neighbours. One
// instruction reads the 16 bytes of a group from shared memory. If the number of pixels in a map is a multiple of four,
// one instruction also stores four pixels of a map.
//
// Data: x (images, C, H, W) INPUT; w (C, K, K, M) float; bias (M) or null; y (images, M, OH, OW) OUTPUT.
// Launch: blockIdx.x = tile of BN pixels (over all images), blockIdx.y = tile of BM maps, THREADS threads, each for TM
//         maps of TN pixels.
// The sum of an output runs over c, p, q in that order, as in `direct`: both agree to the bit.
#include "common.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
constexpr int PIXELS = OH * OW;   // per output map
constexpr int DEPTH = C * K * K;  // length of every sum
constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int COLUMNS_APART = BN < THREADS ? BN : THREADS;  // a thread gathers columns t, t + THREADS, ...
constexpr int COLUMNS = BN / COLUMNS_APART;
constexpr int ROWS_APART = THREADS / COLUMNS_APART;
constexpr int LANES_M = BM / TM < 4 ? BM / TM : 4;          // a warp is LANES_M x LANES_N threads of the tile
constexpr int LANES_N = 32 / LANES_M;

static_assert(TM % 4 == 0 && TN % 4 == 0, "tiles are read from shared memory four floats at a time");
static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles must cover the block tile exactly");
static_assert(THREADS % 32 == 0 && BN / TN % LANES_N == 0, "a block must consist of whole warps");
static_assert(BN % COLUMNS_APART == 0 && THREADS % COLUMNS_APART == 0, "threads must share columns out evenly");

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    conv_wide_loads(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                    OUTPUT *__restrict__ y, int images) {
    __shared__ __align__(16) float filters[BK][BM], pixels[BK][BN];

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
        const int pixel = n % PIXELS;
        top[i] = pixel / OW * S - PADDING, left[i] = pixel % OW * S - PADDING;
        window[i] = n < pixel_end ? x + n / PIXELS * (C * H * W) + top[i] * W + left[i] : nullptr;
    }

    // This thread's outputs: maps thread_m * 4 + (BM / (TM / 4)) * group, and pixels likewise, in groups of four, so
    // that the lanes of a warp read neighbouring 16-byte words.
    const int warp = t / 32, lane = t % 32;
    const int warps_n = BN / TN / LANES_N;
    const int thread_m = warp / warps_n * LANES_M + lane / LANES_N;
    const int thread_n = warp % warps_n * LANES_N + lane % LANES_N;
    constexpr int GROUPS_M = TM / 4, GROUPS_N = TN / 4;

    float sums[TM][TN] = {};
    for (int k0 = 0; k0 < DEPTH; k0 += BK) {
        for (int i = t; i < BK * BM; i += THREADS) {
            const int k = k0 + i / BM, map = map0 + i % BM;
            filters[i / BM][i % BM] = k < DEPTH && map < M ? w[k * M + map] : 0.0f;
        }
        for (int row = first_row; row < BK; row += ROWS_APART) {
            const int k = k0 + row, c = k / (K * K), p = k / K % K, q = k % K;
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                const bool exists = k < DEPTH && window[i] && is_pixel<PADDING>(top[i] + p, left[i] + q, H, W);
                pixels[row][t % COLUMNS_APART + i * COLUMNS_APART] =
                    exists ? float(window[i][(c * H + p) * W + q]) : 0.0f;
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; k++) {
            alignas(16) float a[TM], b[TN];
#pragma unroll
            for (int g = 0; g < GROUPS_M; g++)
                *(float4 *)(a + 4 * g) = *(const float4 *)&filters[k][g * (BM / GROUPS_M) + thread_m * 4];
#pragma unroll
            for (int g = 0; g < GROUPS_N; g++)
                *(float4 *)(b + 4 * g) = *(const float4 *)&pixels[k][g * (BN / GROUPS_N) + thread_n * 4];
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sums[i][j] = fmaf(b[j], a[i], sums[i][j]);
        }
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
            OUTPUT *map = y + (n / PIXELS * M + m) * PIXELS;
            if constexpr (PIXELS % 4 == 0) {
                store4(map + n % PIXELS, out);
            } else {
                for (int j = 0; j < 4 && n + j < pixel_end; j++)
                    y[((n + j) / PIXELS * M + m) * PIXELS + (n + j) % PIXELS] = OUTPUT(out[j]);
            }
        }
    }
}
