// The arithmetic is FP16: the kernel works like `unrolled`, but a thread sums two neighbouring output maps at once, in
// the two halves of one register. One instruction does two half-precision multiply-adds.
//
// Data: x (images, C, H, W) INPUT; filters (ceil(M / 2), C, K, K, 2) WEIGHT = float16, packed at load (an odd M is
//       padded with zeros) and copied before each launch; bias (M) REAL = float32 or null;
//       y (images, M, OH, OW) OUTPUT. The argument w is not read.
//       Dynamic shared memory: SIDE * SIDE pixels of one channel, each twice, as half2.
// Launch: blockIdx.x is the tile, over all images; blockIdx.y the pair of maps within the slice that starts at
//         first_pair; TILE * TILE threads, a row of the tile after the other.
#include "common.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
constexpr int SIDE = (TILE - 1) * S + K;  // side of the input tile
constexpr int ACROSS = (OW + TILE - 1) / TILE, DOWN = (OH + TILE - 1) / TILE;

static_assert(TILE % 8 == 0 && TILE <= 32, "TILE * TILE threads must be whole warps and at most 1,024");

extern "C" {  // the braces make this a definition
__constant__ half2 filters[65536 / sizeof(half2)];
}

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    conv_half2(const INPUT *__restrict__ x, const WEIGHT *__restrict__ w, const REAL *__restrict__ bias,
               OUTPUT *__restrict__ y, int images, int first_pair) {
    extern __shared__ __align__(16) unsigned char memory[];
    half2 *pixels = (half2 *)memory;

    const int tile = blockIdx.x % (ACROSS * DOWN);
    const long long image = blockIdx.x / (ACROSS * DOWN);
    const int first_row = tile / ACROSS * TILE, first_column = tile % ACROSS * TILE;
    const int row = threadIdx.x / TILE, column = threadIdx.x % TILE;  // within the tile

    half2 sums = 0;
#pragma unroll 1
    for (int c = 0; c < C; c++) {
        const INPUT *map = x + (image * C + c) * (H * W);
#pragma unroll 1
        for (int i = row; i < SIDE; i += TILE)
#pragma unroll 1
            for (int j = column; j < SIDE; j += TILE) {
                const int h = first_row * S + i - PADDING, v = first_column * S + j - PADDING;
                const bool inside = h < H && v < W && is_pixel<PADDING>(h, v, H, W);
                const float16 pixel(inside ? float(map[h * W + v]) : 0.0f);
                pixels[i * SIDE + j] = pack_half2(pixel, pixel);
            }
        __syncthreads();

        const half2 *window = pixels + row * S * SIDE + column * S;
        const int filter = (blockIdx.y * C + c) * (K * K);
#pragma unroll
        for (int p = 0; p < K; p++)
#pragma unroll
            for (int q = 0; q < K; q++)
                sums = fused_multiply_add(window[p * SIDE + q], filters[filter + p * K + q], sums);
        __syncthreads();  // before the next channel overwrites the tile
    }

    const int h = first_row + row, v = first_column + column;
    if (h >= OH || v >= OW) return;
    auto store = [&](int m, float sum) {
        if (m < M)
            y[((image * M + m) * OH + h) * OW + v] =
                OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[m] : REAL(0)));
    };
    const int m = 2 * (first_pair + blockIdx.y);
    store(m, float(low_half(sums)));
    store(m + 1, float(high_half(sums)));
}
