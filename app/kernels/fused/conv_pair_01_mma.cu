// Both convolutions of lenet5, each with ReLU and 2 x 2 average pooling, step 1: tensor cores by mma instructions.
// Everything between the image and the pooled features stays on chip.
//
// A warp computes the features of one image and waits for no other warp. Tiles are chosen such that a thread holds
// whole windows of both poolings, which are sums in registers. With SPLIT each activation and each filter is the sum of
// two float16, high and low, and a product is high x high + high x low + low x high, without the latter for filters
// that are exact in float16 (WEIGHT_PARTS); the pixels, 0 to 255, are float16 already. Tensor cores truncate, which
// matters in long sums: with SPLIT they sum each tap of the second convolution, and ordinary additions sum the taps.
// The second convolution's filters are too large for the shared memory of most cards. They are packed as fragments: a
// warp reads them from device memory 512 bytes at a time, a step ahead. The warps of a multiprocessor read the same
// filters through its L1 cache; to share a ring in shared memory they would have to wait for each other.
// From: none of the systems.
// Data: x (images, 28, 28) uint8; filters1, filters2 packed (see conv_pair.py) float16; bias1 (32), bias2 (64)
//       with the scale of their sums, or null; scales (2); y (images, 64, 4, 4) OUTPUT.
// Launch: one warp per image, WARPS warps per block.
// Bound by: the tensor cores.
#include "common.cuh"
#include "conv_pair.cuh"
#include "mma.cuh"
#include "shared_storage.cuh"

constexpr int PARTS = SPLIT ? 2 : 1;   // float16 per activation
constexpr int MAPS = SPLIT ? 32 : 64;  // how many of the second convolution's 64 maps are summed at a time
constexpr int TILES = MAPS / 16, SUMS = 32 * TILES;
constexpr int FILTER2_WORDS = WEIGHT_PARTS * K_STEPS2 * 16 * 2 / 16;  // words of 16 bytes per map
constexpr int PITCH = 20;  // pixel pairs between rows of an image, of which 14 are used

struct WarpStorage {
    unsigned char pooled[PARTS * POOLED_IMAGE_BYTES];  // high parts, then low parts
    half2 pairs[28 * PITCH];
};
struct SharedStorage {
    WarpStorage warp[WARPS];
};

// Writes an image as pairs of neighbouring pixels. The pair after each row is multiplied by zeros, so must not be NaN.
__device__ __forceinline__ void stage_image(half2 *pairs, const unsigned char *image, int lane) {
    const unsigned *words = (const unsigned *)image;  // seven per row
    unsigned word[7];
#pragma unroll
    for (int i = 0; i < 7; i++) word[i] = __ldg(words + min(lane + 32 * i, 195));
#pragma unroll
    for (int i = 0; i < 7; i++) {
        const int at = lane + 32 * i;
        const uint2 four = make_uint2(to_half2(word[i], 0x4140), to_half2(word[i], 0x4342));
        if (at < 196) *(uint2 *)(pairs + at / 7 * PITCH + at % 7 * 2) = four;
    }
    if (lane < 28) pairs[lane * PITCH + 14] = 0;
}

// The first convolution's filters as B: eight maps per tile, two k steps of 16 taps.
struct Fragments1 {
    uint4 tile[WEIGHT_PARTS][4];
};
__device__ __forceinline__ Fragments1 load_fragments1(const uint4 *packed, int lane) {
    Fragments1 filters;
#pragma unroll
    for (int i = 0; i < 4 * WEIGHT_PARTS; i++) filters.tile[i / 4][i % 4] = __ldg(packed + i * 32 + lane);
    return filters;
}

// Adds the first convolution of 16 pixels: the taps of product row g begin at ``window``, those of row g + 8 one pixel
// further right. taps: offsets of this lane's pairs of taps in a window.
__device__ __forceinline__ void multiply_taps(float (&sums)[4][4], const Fragments1 &filters, const half2 *window,
                                          const int (&taps)[4]) {
    half2 left[4], right[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        left[i] = window[taps[i]];
        right[i] = __byte_perm(left[i], window[taps[i] + 1], 0x5432);
    }
#pragma unroll
    for (int part = WEIGHT_PARTS - 1; part >= 0; part--)  // small terms first
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int tile = 0; tile < 4; tile++) {
                const uint4 &filter = filters.tile[part][tile];
                const unsigned a[4] = {left[2 * step], right[2 * step], left[2 * step + 1], right[2 * step + 1]};
                const unsigned b[2] = {step ? filter.z : filter.x, step ? filter.w : filter.y};
                mma_f16(sums[tile], a, b);
            }
}

// Stores the pooled activations of two maps at one pixel, from the products of the window's upper and lower row.
__device__ __forceinline__ void store_pooled1(unsigned char *place, const float (&upper)[4], const float (&lower)[4],
                                              float scale) {
    if constexpr (SPLIT) {
        float pooled[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            pooled[i] = scale * twice_pooled(upper[i], upper[i + 2], lower[i], lower[i + 2]);
        const half2 high = pack_half2(pooled[0], pooled[1]);
        *(half2 *)place = high;
        *(half2 *)(place + POOLED_IMAGE_BYTES) =
            pack_half2(pooled[0] - float(low_half(high)), pooled[1] - float(high_half(high)));
    } else {
        *(half2 *)place = add(add(pack_relu(upper[0], upper[1]), pack_relu(upper[2], upper[3])),
                              add(pack_relu(lower[0], lower[1]), pack_relu(lower[2], lower[3])));
    }
}

// The first convolution of a staged image, two rows of four pooled pixels at a time: pixel g belongs to four lanes.
__device__ __forceinline__ void first_layer(unsigned char *pooled, const half2 *pairs, const Fragments1 &filters,
                                            const float *bias, float scale, int lane) {
    const int row = lane / 16, column = lane / 4 % 4, t = lane % 4;
    const half2 *window = pairs + 2 * row * PITCH + column;
    unsigned char *place = pooled + row * ROW_BYTES + column * 16 + t * 4;
    int taps[4];  // pairs 0 to 14, three per row, four per step; the last is multiplied by zeros
#pragma unroll
    for (int i = 0; i < 4; i++) taps[i] = min(t + 4 * i, 14) / 3 * PITCH + min(t + 4 * i, 14) % 3;
    float start[4][2];
#pragma unroll
    for (int i = 0; i < 8; i++) start[i / 2][i % 2] = HAS_BIAS1 ? __ldg(bias + i / 2 * 8 + 2 * t + i % 2) : 0.0f;
#pragma unroll 1
    for (int rows = 0; rows < 6; rows++)
#pragma unroll
        for (int columns = 0; columns < 3; columns++) {
            float upper[4][4], lower[4][4];
#pragma unroll
            for (int i = 0; i < 16; i++) upper[i / 4][i % 4] = lower[i / 4][i % 4] = start[i / 4][i % 2];
            const half2 *first = window + rows * 4 * PITCH + columns * 4;
            unsigned char *first_place = place + rows * 2 * ROW_BYTES + columns * 64;
            multiply_taps(upper, filters, first, taps);
            multiply_taps(lower, filters, first + PITCH, taps);
#pragma unroll
            for (int tile = 0; tile < 4; tile++)
                store_pooled1(first_place + tile * PLANE_BYTES, upper[tile], lower[tile], scale);
        }
}

// The second convolution's filters as A, for a step of one tap and 16 channels: 16 maps per tile.
struct Fragments2 {
    uint4 tile[WEIGHT_PARTS][TILES];
};
__device__ __forceinline__ Fragments2 load_fragments2(const uint4 *packed, int step) {
    Fragments2 filters;
#pragma unroll
    for (int i = 0; i < WEIGHT_PARTS * TILES; i++)
        filters.tile[i / TILES][i % TILES] = __ldg(packed + (step * WEIGHT_PARTS * TILES + i) * 32);
    return filters;
}

// Sums of the second convolution: a tile of maps by eight rows of eight pixels.
typedef float Sums[TILES][8][4];

__device__ __forceinline__ void multiply(Sums &sums, const uint4 (&filters)[TILES], const unsigned (&pixels)[8][2]) {
#pragma unroll
    for (int row = 0; row < 8; row++)
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const uint4 &filter = filters[tile];
            const unsigned a[4] = {filter.x, filter.y, filter.z, filter.w};
            mma_f16(sums[tile][row], a, pixels[row]);
        }
}

// Loads 16 channels of the 64 pixels under a tap as B. A lane addresses one of two rows and of two blocks of channels.
__device__ __forceinline__ void load_pixels2(unsigned (&pixels)[8][2], const unsigned char *tap) {
#pragma unroll
    for (int row = 0; row < 8; row += 2) {
        unsigned four[4];
        ldmatrix(four, tap + row * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < 4; i++) pixels[row + i / 2][i % 2] = four[i];
    }
}

// Adds the products of a tap. coming: the filters of its first step; replaced by those of the next tap's first step.
__device__ __forceinline__ void multiply_tap(Sums &sums, Fragments2 &coming, const uint4 *packed,
                                             const unsigned char *pixels, int tap) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const Fragments2 filters = coming;
        coming = load_fragments2(packed, min(2 * tap + half + 1, K_STEPS2 - 1));
        unsigned high[8][2];
        load_pixels2(high, pixels + half * 2 * PLANE_BYTES);
        if constexpr (SPLIT) {  // small terms first
            unsigned low[8][2];
            load_pixels2(low, pixels + half * 2 * PLANE_BYTES + POOLED_IMAGE_BYTES);
            multiply(sums, filters.tile[0], low);
            if (WEIGHT_PARTS == 2) multiply(sums, filters.tile[WEIGHT_PARTS - 1], high);
        }
        multiply(sums, filters.tile[0], high);
    }
}

// Adds the second convolution of some maps. packed, pixels: the addresses of this lane's filters and pixels.
__device__ __forceinline__ void second_layer(Sums &sums, const uint4 *packed, const unsigned char *pixels) {
    Fragments2 coming = load_fragments2(packed, 0);
#pragma unroll 1
    for (int row = 0; row < 5; row++)
#pragma unroll(SPLIT ? 1 : 5)
        for (int column = 0; column < 5; column++) {
            const unsigned char *first = pixels + row * ROW_BYTES + column * 16;
            if constexpr (SPLIT) {
                Sums of_tap = {};
                multiply_tap(of_tap, coming, packed, first, row * 5 + column);
#pragma unroll
                for (int i = 0; i < SUMS; i++) sums[i / 32][i / 4 % 8][i % 4] += of_tap[i / 32][i / 4 % 8][i % 4];
            } else {
                multiply_tap(sums, coming, packed, first, row * 5 + column);
            }
        }
}

// Stores a map's pooled features, of which this lane has one column.
__device__ __forceinline__ void store_features(float16 *map, const float (&column)[4], int lane) {
    *(uint2 *)(map + lane % 4 * 4) = transposed(column, lane);
}
__device__ __forceinline__ void store_features(float *map, const float (&column)[4], int lane) {
#pragma unroll
    for (int row = 0; row < 4; row++) map[row * 4 + lane % 4] = column[row];
}

// Activates and pools the sums in registers, and stores the features.
__device__ __forceinline__ void finish(OUTPUT *y, const Sums &sums, float scale, int lane) {
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        float column[4];
        pooled2<1>(column, *(const float(*)[32])sums[i / 2], 0, i % 2);
#pragma unroll
        for (int row = 0; row < 4; row++) column[row] *= scale;
        store_features(y + (i * 8 + lane / 4) * 16, column, lane);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    conv_pair_mma(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                  const float *__restrict__ bias1, const uint4 *__restrict__ filters2, const float *__restrict__ bias2,
                  const float *__restrict__ scales, OUTPUT *__restrict__ y, int images) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long image = (long long)blockIdx.x * WARPS + warp;
    if (image >= images) return;  // no other warp waits for this one
    unsigned char *pooled = (unsigned char *)&shared_storage<SharedStorage>() + warp * int(sizeof(WarpStorage));
    half2 *pairs = (half2 *)(pooled + sizeof(WarpStorage::pooled));

    stage_image(pairs, x + image * 784, lane);
    __syncwarp();
    first_layer(pooled, pairs, load_fragments1(filters1, lane), bias1, scales[0], lane);
    __syncwarp();
    const unsigned char *pixels = pooled + lane / 16 * ROW_BYTES + lane / 8 % 2 * PLANE_BYTES + lane % 8 * 16;
#pragma unroll 1
    for (int map = 0; map < 64; map += MAPS) {
        const float *bias = bias2 + map + lane / 4;
        Sums sums;
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            sums[i / 32][i / 4 % 8][i % 4] = HAS_BIAS2 ? __ldg(bias + i / 32 * 16 + i / 2 % 2 * 8) : 0.0f;
        second_layer(sums, filters2 + map * FILTER2_WORDS + lane, pixels);
        finish(y + image * 1024 + map * 16, sums, scales[1], lane);
    }
}
