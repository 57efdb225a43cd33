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
#include "conv_pair_int8.cuh"

constexpr int TAP_BYTES = 64 * 32;

struct SharedStorage : ByteStorage<TAPS * TAP_BYTES, IMAGES, WARPGROUPS> {};

struct Products {
    template <int Count>
    static __device__ __forceinline__ void issue(int (&sums)[Count], unsigned long long pixels,
                                                 const unsigned char *filters2) {
        const unsigned long long filter = make_smem_desc(shared_address(filters2), 1024, 128);
        wgmma_fence();
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
            wgmma_s8_u8(sums, advance_desc(filter, tap * TAP_BYTES), advance_desc(pixels, tap_offset<IMAGES>(tap)),
                        tap == 0);
        wgmma_commit_group();
    }
};

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, 1)
    conv_pair_wgmma_int8(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                         const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                         float16 *__restrict__ y, int images) {
    convolve_pair<IMAGES, WARPGROUPS>(BytePolicy<IMAGES, SharedStorage, Products>{{}, scales}, x, filters1, filters2,
                                      scales, y, images);
}
