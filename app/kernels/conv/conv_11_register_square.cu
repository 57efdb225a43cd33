// The register tile has two dimensions: the kernel works like `register-column`, but a thread computes TM maps of TN
// pixels. A value read from shared memory then serves several multiply-adds: TN for a filter value, TM for a pixel.
//
// Data: x (images, C, H, W) INPUT; w (C, K, K, M) WEIGHT; bias (M) REAL or null; y (images, M, OH, OW) OUTPUT.
// Launch: BM / TM x BN / TN threads for BM maps x BN pixels (numbered over all images). A thread's maps are BM / TM
//         apart, its pixels BN / TN: neighbouring lanes read neighbouring words. blockIdx.x counts tiles of pixels and,
//         fastest, tiles of maps: blocks that gather the same pixels run side by side. Every BK terms a block gathers a
//         tile of pixels and one of filters; a thread gathers its own pixels' columns.
// The sum of an output runs over c, p, q in that order, as in `direct`: both agree to the bit.
#include "common.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
constexpr int PIXELS = OH * OW;   // per output map
constexpr int DEPTH = C * K * K;  // length of every sum
constexpr int ROWS = BM / TM, LANES = BN / TN;  // of threads
constexpr int THREADS = ROWS * LANES;
constexpr int MAP_TILES = (M + BM - 1) / BM;

static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles must cover the block tile exactly");
static_assert(THREADS <= 1024, "a block must not exceed 1,024 threads");
static_assert(BK * (BM + BN) * sizeof(REAL) <= 48 << 10, "a tile of pixels and one of filters must fit in 48 KB");

extern "C" __global__ void __launch_bounds__(THREADS)
    conv_register_square(const INPUT *__restrict__ x, const WEIGHT *__restrict__ w, const REAL *__restrict__ bias,
                         OUTPUT *__restrict__ y, int images) {
    __shared__ REAL filters[BK][BM], pixels[BK][BN];

    const int t = threadIdx.x, row = t / LANES, lane = t % LANES;
    const int map0 = blockIdx.x % MAP_TILES * BM;
    const long long pixel0 = blockIdx.x / MAP_TILES * (long long)BN, pixel_end = (long long)images * PIXELS;
    const INPUT *window[TN];  // the first pixel of each of the thread's windows; null beyond the last one
    int top[TN], left[TN];    // its row and column, negative in the padding
#pragma unroll
    for (int j = 0; j < TN; j++) {
        const long long n = pixel0 + lane + j * LANES;
        const int pixel = n % PIXELS;
        top[j] = pixel / OW * S - PADDING, left[j] = pixel % OW * S - PADDING;
        window[j] = n < pixel_end ? x + n / PIXELS * (C * H * W) + top[j] * W + left[j] : nullptr;
    }

    REAL sums[TM][TN] = {};
    for (int k0 = 0; k0 < DEPTH; k0 += BK) {
        for (int i = t; i < BK * BM; i += THREADS) {
            const int k = k0 + i / BM, map = map0 + i % BM;
            filters[i / BM][i % BM] = k < DEPTH && map < M ? REAL(w[k * M + map]) : REAL(0);
        }
        for (int i = row; i < BK; i += ROWS) {
            const int k = k0 + i, c = k / (K * K), p = k / K % K, q = k % K;
#pragma unroll
            for (int j = 0; j < TN; j++) {
                const bool exists = k < DEPTH && window[j] && is_pixel<PADDING>(top[j] + p, left[j] + q, H, W);
                pixels[i][lane + j * LANES] = exists ? REAL(window[j][(c * H + p) * W + q]) : REAL(0);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; i++) {
            REAL a[TM], b[TN];
#pragma unroll
            for (int m = 0; m < TM; m++) a[m] = filters[i][row + m * ROWS];
#pragma unroll
            for (int j = 0; j < TN; j++) b[j] = pixels[i][lane + j * LANES];
#pragma unroll
            for (int m = 0; m < TM; m++)
#pragma unroll
                for (int j = 0; j < TN; j++) sums[m][j] = fused_multiply_add(b[j], a[m], sums[m][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < TN; j++) {
        const long long n = pixel0 + lane + j * LANES;
#pragma unroll
        for (int i = 0; i < TM; i++) {
            const int m = map0 + row + i * ROWS;
            if (m < M && n < pixel_end)
                y[(n / PIXELS * M + m) * PIXELS + n % PIXELS] =
                    OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sums[i][j], HAS_BIAS ? bias[m] : REAL(0)));
        }
    }
}
