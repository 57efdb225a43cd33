// The register tile has one dimension: the kernel works like `implicit-gemm`, but a thread computes TM maps of its
// pixel and keeps their sums in registers. A pixel read once from shared memory then serves TM multiply-adds.
//
// Data: x (images, C, H, W) INPUT; w (C, K, K, M) WEIGHT; bias (M) REAL or null; y (images, M, OH, OW) OUTPUT.
// Launch: BM / TM x BN threads for BM maps x BN pixels (numbered over all images). A thread's maps are BM / TM apart.
//         blockIdx.x counts tiles of pixels and, fastest, tiles of maps: blocks that gather the same pixels run side by
//         side. Every BK terms a block gathers a tile of pixels and one of filters; a thread gathers its own pixel's
//         column.
// The sum of an output runs over c, p, q in that order, as in `direct`: both agree to the bit.
#include "common.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
constexpr int PIXELS = OH * OW;   // per output map
constexpr int DEPTH = C * K * K;  // length of every sum
constexpr int ROWS = BM / TM;     // of threads: each row has BN pixels
constexpr int THREADS = ROWS * BN;
constexpr int MAP_TILES = (M + BM - 1) / BM;

static_assert(BM % TM == 0, "thread tiles must cover the block tile exactly");
static_assert(THREADS <= 1024, "a block must not exceed 1,024 threads");
static_assert(BK * (BM + BN) * sizeof(REAL) <= 48 << 10, "a tile of pixels and one of filters must fit in 48 KB");

extern "C" __global__ void __launch_bounds__(THREADS)
    conv_register_column(const INPUT *__restrict__ x, const WEIGHT *__restrict__ w, const REAL *__restrict__ bias,
                         OUTPUT *__restrict__ y, int images) {
    __shared__ REAL filters[BK][BM], pixels[BK][BN];

    const int t = threadIdx.x, row = t / BN, lane = t % BN;
    const int map0 = blockIdx.x % MAP_TILES * BM;
    const long long n = blockIdx.x / MAP_TILES * (long long)BN + lane;
    const bool inside = n < (long long)images * PIXELS;
    const long long image = n / PIXELS;
    const int pixel = n % PIXELS;
    // Threads beyond the last pixel gather the first window, or zeros if there is padding; their sums are not stored.
    const INPUT *window =
        inside ? x + image * (C * H * W) + pixel / OW * S * W + pixel % OW * S - PADDING * (W + 1) : x;

    REAL sums[TM] = {};
    for (int k0 = 0; k0 < DEPTH; k0 += BK) {
        for (int i = t; i < BK * BM; i += THREADS) {
            const int k = k0 + i / BM, map = map0 + i % BM;
            filters[i / BM][i % BM] = k < DEPTH && map < M ? REAL(w[k * M + map]) : REAL(0);
        }
        for (int i = row; i < BK; i += ROWS) {
            const int k = k0 + i, c = k / (K * K), p = k / K % K, q = k % K;
            const int h = pixel / OW * S + p - PADDING, v = pixel % OW * S + q - PADDING;
            const bool exists = k < DEPTH && (PADDING == 0 || inside) && is_pixel<PADDING>(h, v, H, W);
            pixels[i][lane] = exists ? REAL(window[(c * H + p) * W + q]) : REAL(0);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; i++) {
            const REAL value = pixels[i][lane];
#pragma unroll
            for (int j = 0; j < TM; j++) sums[j] = fused_multiply_add(value, filters[i][row + j * ROWS], sums[j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < TM; j++) {
        const int m = map0 + row + j * ROWS;
        if (m < M && inside)
            y[(image * M + m) * PIXELS + pixel] =
                OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sums[j], HAS_BIAS ? bias[m] : REAL(0)));
    }
}
