// The kernel works like `register-row`, but a thread's patch has TR rows, and a block takes several images if they are
// small. The source itself reads inputs as vectors, which `register-row` leaves to the compiler.
//
// Data: x (images, C, H, W) INPUT; w packed (blocks of BM maps, C, K, K, BM) float, padded with zero maps; bias (M) or
//       null; y (images, M, OH, OW) OUTPUT.
// Launch: blockIdx.x = tile of TILE_R x TILE_C patches of IMAGES images, blockIdx.y = block of BM = GROUPS * TM maps.
//         A thread is one patch and one group of TM maps; neighbouring threads are neighbouring patches of a row,
//         then of the next row, then of the next image.
// The sum of an output runs over c, p, q in that order, as in `direct`: both agree to the bit.
#include "common.cuh"
#include "shared_storage.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
constexpr int PATCHES_R = (OH + TR - 1) / TR, PATCHES_C = (OW + TC - 1) / TC;  // per image
constexpr int TILES_R = (PATCHES_R + TILE_R - 1) / TILE_R, TILES_C = (PATCHES_C + TILE_C - 1) / TILE_C;
constexpr int PATCHES = IMAGES * TILE_R * TILE_C;  // per block
constexpr int THREADS = (PATCHES * GROUPS + 31) / 32 * 32;
constexpr int BM = GROUPS * TM;

constexpr int VECTOR = TC * S % 4 == 0 ? 4 : TC * S % 2 == 0 ? 2 : 1;  // floats a load of the input tile
constexpr int ROW = ((TC - 1) * S + K + VECTOR - 1) / VECTOR * VECTOR;  // floats read for one row of a patch
constexpr int IN_R = (TILE_R * TR - 1) * S + K;
constexpr int PITCH = ((TILE_C * TC - 1) * S + K + VECTOR - 1) / VECTOR * VECTOR;
constexpr int IN_FLOATS = IMAGES * IN_R * PITCH;
constexpr int FILTER_FLOATS = K * K * BM;
constexpr int FILTER_START = (IN_FLOATS + ROW + 3) / 4 * 4;  // a read of the last row may go beyond its end

struct SharedStorage {
    float inputs[FILTER_START];
    float filters[(FILTER_FLOATS + 3) / 4 * 4];
};

// Loads Count floats from an address that is a multiple of the widest load that divides Count.
template <int Width, int Count>
__device__ __forceinline__ void read(float (&values)[Count], const float *from) {
#pragma unroll
    for (int i = 0; i < Count; i += Width) {
        if (Width == 4) *(float4 *)(values + i) = *(const float4 *)(from + i);
        if (Width == 2) *(float2 *)(values + i) = *(const float2 *)(from + i);
        if (Width == 1) values[i] = from[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    conv_register_block(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                        OUTPUT *__restrict__ y, int images) {
    float *inputs = shared_storage<SharedStorage>().inputs, *filters = inputs + FILTER_START;

    const int t = threadIdx.x;
    const int tile = blockIdx.x % (TILES_R * TILES_C);
    const long long image0 = (long long)(blockIdx.x / (TILES_R * TILES_C)) * IMAGES;
    const int tile_row = tile / TILES_C * (TILE_R * TR), tile_column = tile % TILES_C * (TILE_C * TC);
    const int last_image = min((long long)IMAGES, images - image0) - 1;
    const INPUT *block_x = x + image0 * (C * H * W);
    const float *block_w = w + (long long)blockIdx.y * (C * K * K * BM);

    const int group = t / PATCHES, patch = t % PATCHES;
    const int patch_row = patch / TILE_C % TILE_R * TR, patch_column = patch % TILE_C * TC;
    const int image = patch / (TILE_C * TILE_R);
    const bool active = group < GROUPS;
    float sums[TM][TR][TC] = {};

    for (int step = 0; step < C; step++) {
        for (int at = t; at < IN_FLOATS; at += THREADS) {
            const int h = tile_row * S + at / PITCH % IN_R - PADDING, v = tile_column * S + at % PITCH - PADDING;
            const int from = at / (PITCH * IN_R);
            const bool inside = from <= last_image && h < H && v < W && is_pixel<PADDING>(h, v, H, W);
            inputs[at] = inside ? float(block_x[((from * C + step) * H + h) * W + v]) : 0.0f;
        }
        for (int at = t; at < FILTER_FLOATS; at += THREADS) filters[at] = block_w[step * FILTER_FLOATS + at];
        __syncthreads();
        if (active)
#pragma unroll 1
            for (int p = 0; p < K; p++) {
                const float *rows = inputs + (image * IN_R + patch_row * S + p) * PITCH + patch_column * S;
                alignas(16) float values[TR][ROW];
#pragma unroll
                for (int r = 0; r < TR; r++) read<VECTOR>(values[r], rows + r * S * PITCH);
#pragma unroll
                for (int q = 0; q < K; q++) {
                    alignas(16) float taps[TM];
                    read<TM % 4 == 0 ? 4 : TM % 2 == 0 ? 2 : 1>(taps, filters + (p * K + q) * BM + group * TM);
#pragma unroll
                    for (int m = 0; m < TM; m++)
#pragma unroll
                        for (int r = 0; r < TR; r++)
#pragma unroll
                            for (int c = 0; c < TC; c++)
                                sums[m][r][c] = fmaf(values[r][c * S + q], taps[m], sums[m][r][c]);
                }
            }
        __syncthreads();  // before the next channel overwrites the tile
    }

    if (!active || image > last_image) return;
#pragma unroll
    for (int m = 0; m < TM; m++) {
        const int map = blockIdx.y * BM + group * TM + m;
        if (map >= M) break;
        const float shift = HAS_BIAS ? bias[map] : 0.0f;
        OUTPUT *out = y + ((image0 + image) * M + map) * (OH * OW);
#pragma unroll
        for (int r = 0; r < TR; r++)
#pragma unroll
            for (int c = 0; c < TC; c++) {
                const int row = tile_row + patch_row + r, column = tile_column + patch_column + c;
                if (row < OH && column < OW)
                    out[row * OW + column] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sums[m][r][c], shift));
            }
    }
}
