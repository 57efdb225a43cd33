// A block computes TILE x TILE outputs of one map of one image. For each channel the block copies the input tile under
// these outputs, and the filter, to shared memory. Its threads read both from there.
//
// Data: x (images, C, H, W) INPUT; w (C, K, K, M) WEIGHT; bias (M) REAL or null; y (images, M, OH, OW) OUTPUT.
//       Dynamic shared memory: SIDE * SIDE pixels and K * K taps, converted to REAL once, as they are loaded.
// Launch: blockIdx.x is the tile, over all images; blockIdx.y the output map; TILE * TILE threads, a row of the tile
//         after the other, so neighbouring threads have neighbouring columns.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    conv_shared_tile(const INPUT *x, const WEIGHT *w, const REAL *bias, OUTPUT *y, int images, int C, int H, int W,
                     int M, int K, int S, int TILE) {
    extern __shared__ __align__(16) unsigned char memory[];
    const int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
    const int SIDE = (TILE - 1) * S + K;  // side of the input tile
    REAL *pixels = (REAL *)memory, *taps = pixels + SIDE * SIDE;

    const int across = (OW + TILE - 1) / TILE, down = (OH + TILE - 1) / TILE;
    const int tile = blockIdx.x % (across * down), m = blockIdx.y;
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
        for (int k = threadIdx.x; k < K * K; k += TILE * TILE) taps[k] = REAL(w[(c * K * K + k) * M + m]);
        __syncthreads();

        const REAL *window = pixels + row * S * SIDE + column * S;
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++) sum = fused_multiply_add(window[p * SIDE + q], taps[p * K + q], sum);
        __syncthreads();  // before the next channel overwrites the tiles
    }

    const int h = first_row + row, v = first_column + column;
    if (h < OH && v < OW)
        y[((image * M + m) * OH + h) * OW + v] =
            OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[m] : REAL(0)));
}
