// Shared by the kernels for lenet5's convolutions whose second one multiplies bytes: the maps between them, and the
// second convolution except for its products.
#pragma once
#include "conv_pair_warpgroups.cuh"

// Converts pooled sums to bytes, those of 1 or more to 255. As float16 bits, 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ half2 to_bytes(half2 a, half2 b) {
    return fused_multiply_add(add_saturated(a, b), 0x5bf85bf8, 0x64006400);
}

// The sum over a 2 x 2 window of positive results.
__device__ __forceinline__ int pooled_window(int a, int b, int c, int d) {
    int sum = max(a, 0);
    sum = max(sum + b, sum);  // one instruction
    sum = max(sum + c, sum);
    return max(sum + d, sum);
}

struct ByteMaps : Float16Sums {
    static constexpr int BYTES = 1;
    typedef half2 Maps[9];  // those kept of even maps are bytes: five words, of two j each
    static __device__ __forceinline__ void pool(Maps &maps, const Sums &upper, const Sums &lower, const float *) {
#pragma unroll
        for (int j = 0; j < 9; j++)
            maps[j] = to_bytes(add(relu(upper[2 * j]), relu(upper[2 * j + 1])),
                               add(relu(lower[2 * j]), relu(lower[2 * j + 1])));
    }
    template <typename Offsets>
    static __device__ __forceinline__ void store(unsigned char *pooled, const Offsets &offsets, const Maps &even,
                                                 const Maps &odd) {
#pragma unroll
        for (int j = 0; j < 9; j++) {
            unsigned char *at = offsets.at(pooled, j);
            const int byte = 2 * (j % 2);
            *(unsigned short *)at = (unsigned short)__byte_perm(even[j / 2], odd[j], 0x40 + byte);
            *(unsigned short *)(at + 32) = (unsigned short)__byte_perm(even[j / 2], odd[j], 0x61 + byte);
        }
    }
    static __device__ __forceinline__ void keep(Maps &even, const Maps &maps, bool odd) {
        if (odd) return;
#pragma unroll
        for (int i = 0; i < 5; i++) even[i] = __byte_perm(maps[2 * i], maps[min(2 * i + 1, 8)], 0x6420);
    }
};

// Shared memory. Filters2Bytes: the second filters with all that the products read, a multiple of 16. An image's pooled
// maps are two planes of 16 channels.
template <int Filters2Bytes, int Images, int Warpgroups>
struct ByteStorage : PairStorage<Filters2Bytes, Images * 2 * PLANE_BYTES, Warpgroups> {
    unsigned long long filters_full;  // barrier
};

// Products::issue(sums, pixels, filters2) issues and commits the second convolution's products, for the Columns pixels
// of a group of images.
template <int Images, typename SharedStorage, typename Products>
struct BytePolicy : ResidentFilters<SharedStorage> {
    typedef ByteMaps First;
    const float *scales;

    // The second convolution with ReLU and pooling, of a full group of images or of a single image.
    template <int Columns>
    __device__ __forceinline__ void convolve2(float16 *y, const unsigned char *, int count) {
        // Recomputed on purpose: hoisted, the taps' addresses would take registers that the sums need.
        const unsigned long long pixels = pixels_desc<Columns, Images>(SharedStorage::pooled(warpgroup_index()));
        int sums[32 * Columns] = {};
        Products::issue(sums, pixels, shared_storage<SharedStorage>().filters2);
        const int t = thread_in_warpgroup(), lane = t % 32, map = t / 32 * 16 + lane / 4;
        const float factors[2] = {__ldg(scales + map), __ldg(scales + map + 8)};
        wgmma_wait_group(sums);
        STAMP(CONV2);
#pragma unroll
        for (int image = 0; image < Columns; image++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float column[4];
#pragma unroll
                for (int row = 0; row < 4; row++) {  // as pooled2
                    const int upper = 4 * (2 * row * Columns + image) + 2 * half, lower = upper + 4 * Columns;
                    column[row] =
                        factors[half] * pooled_window(sums[upper], sums[upper + 1], sums[lower], sums[lower + 1]);
                }
                const uint2 row = transposed(column, lane);
                if (image < count) *(uint2 *)(y + image * 1024 + (map + 8 * half) * 16 + lane % 4 * 4) = row;
            }
    }
};
