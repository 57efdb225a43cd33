// The kernel works like `shared-constant`, but is compiled for each layer: all sizes and the tile are constants.
//
// Data: x (images, C, H, W) INPUT; filters (M, C, K, K) WEIGHT, packed at load and copied before each launch;
//       bias (M) REAL or null; y (images, M, OH, OW) OUTPUT. The argument w is not read.
//       Dynamic shared memory: SIDE * SIDE pixels of one channel, as REAL.
// Launch: blockIdx.x is the tile, over all images; blockIdx.y the output map within the slice that starts at
//         first_map; TILE * TILE threads, a row of the tile after the other.
#include "common.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
constexpr int SIDE = (TILE - 1) * S + K;  // side of the input tile
constexpr int ACROSS = (OW + TILE - 1) / TILE, DOWN = (OH + TILE - 1) / TILE;

static_assert(TILE % 8 == 0 && TILE <= 32, "TILE * TILE threads must be whole warps and at most 1,024");

extern "C" {  // the braces make this a definition
__constant__ WEIGHT filters[65536 / sizeof(WEIGHT)];
}

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    conv_specialised(const INPUT *x, const WEIGHT *w, const REAL *bias, OUTPUT *y, int images, int first_map) {
    extern __shared__ __align__(16) unsigned char memory[];
    REAL *pixels = (REAL *)memory;

    const int tile = blockIdx.x % (ACROSS * DOWN), m = first_map + blockIdx.y;
    const long long image = blockIdx.x / (ACROSS * DOWN);
    const int first_row = tile / ACROSS * TILE, first_column = tile % ACROSS * TILE;
    const int row = threadIdx.x / TILE, column = threadIdx.x % TILE;  // within the tile

    REAL sum = 0;
#pragma unroll 1
    for (int c = 0; c < C; c++) {
        const INPUT *map = x + (image * C + c) * (H * W);
#pragma unroll 1
        for (int i = row; i < SIDE; i += TILE)
#pragma unroll 1
            for (int j = column; j < SIDE; j += TILE) {
                const int h = first_row * S + i - PADDING, v = first_column * S + j - PADDING;
                const bool inside = h < H && v < W && is_pixel<PADDING>(h, v, H, W);
                pixels[i * SIDE + j] = inside ? REAL(map[h * W + v]) : REAL(0);
            }
        __syncthreads();

        const REAL *window = pixels + row * S * SIDE + column * S;
        const int filter = (blockIdx.y * C + c) * (K * K);
#pragma unroll 1
        for (int p = 0; p < K; p++)
#pragma unroll 1
            for (int q = 0; q < K; q++)
                sum = fused_multiply_add(window[p * SIDE + q], REAL(filters[filter + p * K + q]), sum);
        __syncthreads();  // before the next channel overwrites the tile
    }

    const int h = first_row + row, v = first_column + column;
    if (h < OH && v < OW)
        y[((image * M + m) * OH + h) * OW + v] =
            OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[m] : REAL(0)));
}
