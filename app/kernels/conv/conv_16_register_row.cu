// The kernel works like `unrolled`, but a thread computes TC neighbouring pixels of a row in TM maps: an input value
// that it reads serves up to K taps and TM maps.
//
// Data: x (images, C, H, W) INPUT; w packed (blocks of BM maps, C, K, K, BM) float, padded with zero maps; bias (M) or
//       null; y (images, M, OH, OW) OUTPUT.
// Launch: blockIdx.x = tile of TILE_R rows of TILE_C patches of an image, blockIdx.y = block of BM = GROUPS * TM maps.
//         A thread is one patch of TC pixels and one group of TM maps; neighbouring threads are neighbouring patches.
// The sum of an output runs over c, p, q in that order, as in `direct`: both agree to the bit.
#include "common.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
constexpr int PATCHES_C = (OW + TC - 1) / TC;  // per row
constexpr int TILES_R = (OH + TILE_R - 1) / TILE_R, TILES_C = (PATCHES_C + TILE_C - 1) / TILE_C;
constexpr int PATCHES = TILE_R * TILE_C;  // per block
constexpr int THREADS = (PATCHES * GROUPS + 31) / 32 * 32;
constexpr int BM = GROUPS * TM;

constexpr int ROW = (TC - 1) * S + K;  // floats read for one patch
constexpr int IN_R = (TILE_R - 1) * S + K;
constexpr int PITCH = (TILE_C * TC - 1) * S + K;
constexpr int IN_FLOATS = IN_R * PITCH;
constexpr int FILTER_FLOATS = K * K * BM;
constexpr int FILTER_START = (IN_FLOATS + ROW + 3) / 4 * 4;

static_assert((FILTER_START + (FILTER_FLOATS + 3) / 4 * 4) * 4 == SHARED_BYTES, "the row asks for another size");

extern "C" __global__ void __launch_bounds__(THREADS)
    conv_register_row(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                      OUTPUT *__restrict__ y, int images) {
    extern __shared__ __align__(16) float memory[];
    float *inputs = memory, *filters = memory + FILTER_START;

    const int t = threadIdx.x;
    const int tile = blockIdx.x % (TILES_R * TILES_C);
    const long long image = blockIdx.x / (TILES_R * TILES_C);
    const int tile_row = tile / TILES_C * TILE_R, tile_column = tile % TILES_C * (TILE_C * TC);
    const INPUT *block_x = x + image * (C * H * W);
    const float *block_w = w + (long long)blockIdx.y * (C * K * K * BM);

    const int group = t / PATCHES, patch = t % PATCHES;
    const int patch_row = patch / TILE_C, patch_column = patch % TILE_C * TC;
    const bool active = group < GROUPS;
    float sums[TM][TC] = {};

#pragma unroll 1
    for (int c = 0; c < C; c++) {
        for (int at = t; at < IN_FLOATS; at += THREADS) {
            const int h = tile_row * S + at / PITCH - PADDING, v = tile_column * S + at % PITCH - PADDING;
            const bool inside = h < H && v < W && is_pixel<PADDING>(h, v, H, W);
            inputs[at] = inside ? float(block_x[(c * H + h) * W + v]) : 0.0f;
        }
        for (int at = t; at < FILTER_FLOATS; at += THREADS) filters[at] = block_w[c * FILTER_FLOATS + at];
        __syncthreads();
        if (active)
#pragma unroll 1
            for (int p = 0; p < K; p++) {
                const float *row = inputs + (patch_row * S + p) * PITCH + patch_column * S;
                float values[ROW];
#pragma unroll
                for (int i = 0; i < ROW; i++) values[i] = row[i];
#pragma unroll
                for (int q = 0; q < K; q++)
#pragma unroll
                    for (int m = 0; m < TM; m++) {
                        const float tap = filters[(p * K + q) * BM + group * TM + m];
#pragma unroll
                        for (int i = 0; i < TC; i++) sums[m][i] = fmaf(values[i * S + q], tap, sums[m][i]);
                    }
            }
        __syncthreads();  // before the next channel overwrites the tile
    }

    if (!active) return;
#pragma unroll
    for (int m = 0; m < TM; m++) {
        const int map = blockIdx.y * BM + group * TM + m;
        if (map >= M) break;
        const float shift = HAS_BIAS ? bias[map] : 0.0f;
        OUTPUT *out = y + (image * M + map) * (OH * OW);
#pragma unroll
        for (int i = 0; i < TC; i++) {
            const int row = tile_row + patch_row, column = tile_column + patch_column + i;
            if (row < OH && column < OW)
                out[row * OW + column] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sums[m][i], shift));
        }
    }
}
