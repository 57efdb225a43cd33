// Shared by the kernels whose activations are sums of two float16, high and low: float32 sums of the first convolution,
// pooled maps in two parts, float32 features.
#pragma once
#include "conv_pair_warpgroups.cuh"

constexpr int IMAGES = 2;  // per warpgroup at a time: the 128 columns of its products
constexpr int WARPGROUPS = 3, THREADS = 128 * WARPGROUPS;
constexpr int PART_BYTES = IMAGES * POOLED_IMAGE_BYTES;  // high parts, then low parts

// FilterParts: 2, or 1 if filters are exact in float16.
template <int FilterParts>
struct SplitMaps {
    static constexpr int BYTES = 2;
    static constexpr bool FILTERS_AHEAD = false;
    struct Filters {
        Filters1 part[FilterParts];
    };
    typedef float Sums[36];
    struct Maps {
        float value[18];
    };
    static __device__ __forceinline__ void load(Filters &filters, const uint4 *filters1, bool odd, int t) {
#pragma unroll
        for (int part = FilterParts - 1; part >= 0; part--)
            filters.part[part] = load_filters1(filters1 + part * 768, odd, t);
    }
    static __device__ __forceinline__ void convolve(Sums &upper, Sums &lower, const Filters &filters,
                                                    const unsigned char *windows) {
#pragma unroll
        for (int part = FilterParts - 1; part >= 0; part--)  // small terms first
            convolve1(upper, lower, filters.part[part], windows, part == FilterParts - 1);
    }
    static __device__ __forceinline__ void pool(Maps &maps, const Sums &upper, const Sums &lower, const float *scales) {
        const float scale = __ldg(scales);
#pragma unroll
        for (int i = 0; i < 18; i++) {
            const int j = 4 * (i / 2) + i % 2;
            maps.value[i] = scale * twice_pooled(upper[j], upper[j + 2], lower[j], lower[j + 2]);
        }
    }
    template <typename Offsets>
    static __device__ __forceinline__ void store(unsigned char *pooled, const Offsets &offsets, const Maps &even,
                                                 const Maps &odd) {
#pragma unroll
        for (int i = 0; i < 18; i++) {
            unsigned char *at = offsets.at(pooled, i / 2) + i % 2 * 32;
            const half2 high = pack_half2(even.value[i], odd.value[i]);
            *(half2 *)at = high;
            *(half2 *)(at + PART_BYTES) =
                pack_half2(even.value[i] - float(low_half(high)), odd.value[i] - float(high_half(high)));
        }
    }
    static __device__ __forceinline__ void keep(Maps &even, const Maps &maps, bool) { even = maps; }
};

// Stores the features of a group's first ``count`` images from the second convolution's sums.
template <int Columns>
__device__ __forceinline__ void store_features(float *y, const float (&sums)[32 * Columns], const float *scales,
                                               int count) {
    STAMP(CONV2);
    const int t = thread_in_warpgroup(), lane = t % 32;
    const float scale = __ldg(scales + 1);
#pragma unroll
    for (int image = 0; image < Columns; image++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float column[4];
            pooled2<Columns>(column, sums, image, half);
            const int map = t / 32 * 16 + half * 8 + lane / 4;
#pragma unroll
            for (int row = 0; row < 4; row++)
                if (image < count) y[image * 1024 + map * 16 + row * 4 + lane % 4] = column[row] * scale;
        }
}
