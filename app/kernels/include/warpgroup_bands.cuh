// A convolution of images in global memory by warpgroups: each takes a band of an image, CHUNKS tiles of ROWS rows.
//
// The including file defines a kernel of THREADS threads that calls convolve_bands; warpgroups.py has data and launch.
#pragma once
#include "common.cuh"

struct Layer {
    static constexpr int CHANNELS = C, MAPS = M, KERNEL = K, STRIDE = S, WINDOW = POOL;
    static constexpr int STAGED_HEIGHT = (CHUNKS * ROWS - 1) * S + K, STAGED_WIDTH = W + 2 * PADDING;
    static constexpr int HEIGHT = (H + 2 * PADDING - K) / S + 1, WIDTH = (W + 2 * PADDING - K) / S + 1;
    static constexpr int POOLED_HEIGHT = PH, POOLED_WIDTH = PW;
    static constexpr bool IS_MAX = POOL_IS_MAX, WITH_BIAS = HAS_BIAS;
    typedef ACTIVATION Activation;
};
#include "warpgroup_convolution.cuh"

constexpr int BAND_ROWS = CHUNKS * ROWS;  // of the result; pooling reads whole windows
constexpr int BANDS = (PH * POOL + BAND_ROWS - 1) / BAND_ROWS;

struct SharedStorage : FilterStorage {
    unsigned char maps[WARPGROUPS][PARTS * MAPS_BYTES];
    unsigned char results[WARPGROUPS][STAGED * RESULTS * sizeof(OUTPUT) + 16];
};

// Writes a band's pixels, from row ``row0`` of the image on, as [eight channels][row][column][channel], with zeros
// around the image and for channels that do not exist.
__device__ __forceinline__ void stage_band(unsigned char *maps, const INPUT *image, int row0, int thread) {
    constexpr int PIXELS = Layer::STAGED_HEIGHT * Layer::STAGED_WIDTH;
    for (int i = thread; i < PLANES * PIXELS; i += 128) {
        const int plane = i / PIXELS, row = i % PIXELS / Layer::STAGED_WIDTH, column = i % Layer::STAGED_WIDTH;
        const int h = row0 + row, w = column - PADDING;
        const bool inside = unsigned(h) < unsigned(H) && unsigned(w) < unsigned(W);
        const INPUT *pixel = image + plane * (8 * H * W) + h * W + w;
        half2 high[4], low[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            INPUT two[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const bool exists = C == 8 * PLANES || plane * 8 + 2 * j + k < C;
                two[k] = inside && exists ? pixel[(2 * j + k) * (H * W)] : INPUT(0.0f);
            }
            high[j] = pack_half2(two[0], two[1]);
            if (PARTS == 2)
                low[j] = pack_half2(float(two[0]) - float(low_half(high[j])), float(two[1]) - float(high_half(high[j])));
        }
        unsigned char *at = maps + plane * PLANE_BYTES + pixel_offset(row, column);
        *(uint4 *)at = make_uint4(high[0], high[1], high[2], high[3]);
        if (PARTS == 2) *(uint4 *)(at + MAPS_BYTES) = make_uint4(low[0], low[1], low[2], low[3]);
    }
}

__device__ __forceinline__ void convolve_bands(const INPUT *__restrict__ x, const unsigned char *__restrict__ w,
                                               const float *__restrict__ factors, const float *__restrict__ bias,
                                               OUTPUT *__restrict__ y, int images) {
    const int group = warpgroup_index(), thread = threadIdx.x % 128;
    const long long bands = (long long)images * BANDS, stride = WARPGROUPS * gridDim.x;
    unsigned char *maps = shared_storage<SharedStorage>().maps[group];
    Filters filters = {w};
    filters.begin(factors, bias);
    // The last step may read below the band, where filters are zeros: what lies there must not be NaN.
    for (int i = thread; SPARSE && i < PARTS * MAPS_BYTES / 16; i += 128) ((uint4 *)maps)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    filters.wait_for_all();

    const int rounds = (bands - blockIdx.x + stride - 1) / stride;  // the first warpgroup has most
    long long band = blockIdx.x + group * (long long)gridDim.x;
    for (int round = 0; STREAMED ? round < rounds : band < bands; round++, band += stride) {
        filters.begin_round(round + 1 == rounds);
        if (STREAMED && band >= bands) {
            filters.skip_round();
            continue;
        }
        const long long image = band / BANDS;
        const int row0 = band % BANDS * BAND_ROWS;
        warpgroup_barrier(1 + group);  // all warps have read the band before
        stage_band(maps, x + image * (C * H * W), row0 * S - PADDING, thread);
        fence_proxy_async();
        warpgroup_barrier(1 + group);
        convolve_tiles(y + image * RESULTS, (OUTPUT *)shared_storage<SharedStorage>().results[group], maps, filters, row0,
                       group);
    }
}
