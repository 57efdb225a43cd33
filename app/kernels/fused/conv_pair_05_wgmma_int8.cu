// Both convolutions of lenet5 as in step 2, the second of 8-bit integers: step 5, half the tensor-core time.
//
// What changed since step 2: pooled maps are bytes, 0 to 255 steps of one size, and the second filters signed bytes
// with a factor for each map. Their products are exact, so all taps add up in one sum of integers. 16 channels lie
// where 8 float16 did: a filter tap is another start address as before, and one product covers all 32 channels.
// The first convolution's filters include the step: a sum of four results is 1 where bytes end, and saturates there.
// From: none of the systems.
// Data: x (images, 28, 28) uint8; filters1 packed float16, filters2 packed int8 (see conv_pair.py);
//       scales (64), a map's factor from sums to features; y (images, 64, 4, 4) float16.
// Launch: one block per SM, warpgroups that each walk over groups of images on their own: while one pools in registers,
//         the others keep the tensor cores busy. Few images are spread over all SMs, one a group.
// Bound by: the issue slots that pooling takes, then the tensor cores; images in host memory: the bus.
#include "conv_pair_warpgroups.cuh"

constexpr int THREADS = 128 * WARPGROUPS, TAP_BYTES = 64 * 32;

// Two planes of 16 channels an image.
struct SharedStorage : PairStorage<TAPS * TAP_BYTES, IMAGES * 2 * PLANE_BYTES, WARPGROUPS> {
    unsigned long long filters_full;  // barrier
};

// Sums of four positive results, 1 or more of which is 255, as bytes: 0x6400 | byte is 1024 + byte.
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

struct Policy : ResidentFilters<SharedStorage> {
    typedef ByteMaps First;
    const float *scales;

    // The second convolution of a group, or of the one image that it has, with ReLU and pooling.
    template <int Columns>
    __device__ __forceinline__ void convolve2(float16 *y, const unsigned char *, int count) {
        // Recomputed on purpose: hoisted, the taps' addresses would take registers that the sums need.
        const unsigned long long pixels = pixels_desc<Columns, IMAGES>(SharedStorage::pooled(warpgroup_index()));
        const unsigned long long filter =
            make_smem_desc(shared_address(shared_storage<SharedStorage>().filters2), 1024, 128);
        int sums[32 * Columns] = {};
        wgmma_fence();
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
            wgmma_s8_u8(sums, advance_desc(filter, tap * TAP_BYTES), advance_desc(pixels, tap_offset<IMAGES>(tap)),
                        tap == 0);
        wgmma_commit_group();
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_pair_wgmma_int8(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                         const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                         float16 *__restrict__ y, int images) {
    convolve_pair<IMAGES, WARPGROUPS>(Policy{{}, scales}, x, filters1, filters2, scales, y, images);
}
