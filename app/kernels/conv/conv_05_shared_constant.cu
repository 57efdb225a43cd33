// The input tile lies in shared memory, as in `shared-tile`, and the filters in constant memory, as in `constant`.
//
// Data: x (images, C, H, W) INPUT; filters (M, C, K, K) WEIGHT, packed at load and copied before each launch;
//       bias (M) REAL or null; y (images, M, OH, OW) OUTPUT. The argument w is not read.
//       Dynamic shared memory: SIDE * SIDE pixels of one channel, as REAL.
// Launch: blockIdx.x is the tile, over all images; blockIdx.y the output map within the slice that starts at
//         first_map; TILE * TILE threads, a row of the tile after the other.
#include "common.cuh"

extern "C" {  // the braces make this a definition
__constant__ WEIGHT filters[65536 / sizeof(WEIGHT)];
}

extern "C" __global__ void __launch_bounds__(1024)
    conv_shared_constant(const INPUT *x, const WEIGHT *w, const REAL *bias, OUTPUT *y, int images, int C, int H, int W,
                         int M, int K, int S, int TILE, int first_map) {
    extern __shared__ __align__(16) unsigned char memory[];
    const int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
    const int SIDE = (TILE - 1) * S + K;  // side of the input tile
    REAL *pixels = (REAL *)memory;

    const int across = (OW + TILE - 1) / TILE, down = (OH + TILE - 1) / TILE;
    const int tile = blockIdx.x % (across * down), m = first_map + blockIdx.y;
    const long long image = blockIdx.x / (across * down);
    const int first_row = tile / across * TILE, first_column = tile % across * TILE;
    const int row = threadIdx.x / TILE, column = threadIdx.x % TILE;  // within the tile

    REAL sum = 0;
    for (int c = 0; c < C; c++) {
        const INPUT *map = x + (image * C + c) * H * W;
        for (int i = row; i < SIDE; i += TILE)
            for (int j = column; j < SIDE; j += TILE) {
                const int h = first_row * S + i - PADDING, v = first_column * S + j - PADDING;
                const bool inside = h < H && v < W && is_pixel<PADDING>(h, v, H, W);
                pixels[i * SIDE + j] = inside ? REAL(map[h * W + v]) : REAL(0);
            }
        __syncthreads();

        const REAL *window = pixels + row * S * SIDE + column * S;
        const int filter = (blockIdx.y * C + c) * K * K;
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++)
                sum = fused_multiply_add(window[p * SIDE + q], REAL(filters[filter + p * K + q]), sum);
        __syncthreads();  // before the next channel overwrites the tile
    }

    const int h = first_row + row, v = first_column + column;
    if (h < OH && v < OW)
        y[((image * M + m) * OH + h) * OW + v] =
            OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[m] : REAL(0)));
}
