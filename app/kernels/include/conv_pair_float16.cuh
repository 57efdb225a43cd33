// Shared by the kernels for lenet5's convolutions in float16: the maps between them, and the second convolution except
// for its products.
#pragma once
#include "conv_pair_warpgroups.cuh"

struct Float16Maps : Float16Sums {
    static constexpr int BYTES = 2;
    struct Maps {
        half2 pair[9];
    };
    static __device__ __forceinline__ void pool(Maps &maps, const Sums &upper, const Sums &lower, const float *) {
#pragma unroll
        for (int j = 0; j < 9; j++)
            maps.pair[j] = add(add(relu(upper[2 * j]), relu(upper[2 * j + 1])),
                               add(relu(lower[2 * j]), relu(lower[2 * j + 1])));
    }
    template <typename Offsets>
    static __device__ __forceinline__ void store(unsigned char *pooled, const Offsets &offsets, const Maps &even,
                                                 const Maps &odd) {
#pragma unroll
        for (int j = 0; j < 9; j++) {
            unsigned char *at = offsets.at(pooled, j);
            *(half2 *)at = __byte_perm(even.pair[j], odd.pair[j], 0x5410);
            *(half2 *)(at + 32) = __byte_perm(even.pair[j], odd.pair[j], 0x7632);
        }
    }
    static __device__ __forceinline__ void keep(Maps &even, const Maps &maps, bool) { even = maps; }
};

// Shared memory. Filters2Bytes: the second filters with all that the products read, a multiple of 16.
template <int Filters2Bytes, int Images, int Warpgroups>
struct Float16Storage : PairStorage<Filters2Bytes, Images * POOLED_IMAGE_BYTES, Warpgroups> {
    unsigned long long filters_full;  // barrier
    float last_factor;
};

// Products::issue(sums, pixels, filters2) issues and commits the second convolution's products, for the Columns pixels
// of a group of images.
template <int Images, int Warpgroups, typename SharedStorage, typename Products>
struct Float16Policy : ResidentFilters<SharedStorage> {
    typedef Float16Maps First;

    static __device__ __forceinline__ void begin(const unsigned char *filters2, const float *scales) {
        ResidentFilters<SharedStorage>::begin(filters2, scales);
        if (threadIdx.x == 128 * Warpgroups - 1) shared_storage<SharedStorage>().last_factor = scales[1];
    }

    // The second convolution with ReLU and pooling, of a full group of images or of a single image.
    template <int Columns>
    __device__ __forceinline__ void convolve2(float16 *y, const unsigned char *, int count) {
        SharedStorage &smem = shared_storage<SharedStorage>();
        // Recomputed on purpose: hoisted, the taps' addresses would take registers that the sums need.
        const unsigned long long pixels = pixels_desc<Columns, Images>(SharedStorage::pooled(warpgroup_index()));
        float sums[32 * Columns] = {};
        Products::issue(sums, pixels, smem.filters2);
        wgmma_wait_group(sums);
        STAMP(CONV2);
        const int t = thread_in_warpgroup(), lane = t % 32;
        const float factor = smem.last_factor;
#pragma unroll
        for (int image = 0; image < Columns; image++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float column[4];
                pooled2<Columns>(column, sums, image, half);
#pragma unroll
                for (int row = 0; row < 4; row++) column[row] *= factor;
                const uint2 row = transposed(column, lane);
                const int map = t / 32 * 16 + half * 8 + lane / 4;
                if (image < count) *(uint2 *)(y + image * 1024 + map * 16 + lane % 4 * 4) = row;
            }
    }
};
