// Both convolutions of lenet5, each with ReLU and 2 x 2 average pooling, step 2: warpgroup tensor-core instructions.
// Everything between the image and the pooled features stays on chip.
//
// What changed since step 1: wgmma reads its operands from shared memory where they lie. A filter tap is another start
// address, so no im2col tile exists and no thread loads a fragment. The first convolution sums in float16, to which its
// results are rounded anyway: half the registers, so that five warpgroups fit, and nothing to convert.
// From: none of the systems.
// Data: x (images, 28, 28) uint8; filters1, filters2 packed (see conv_pair.py) float16;
//       scales (2), only the second is used; y (images, 64, 4, 4) float16.
// Launch: one block per SM, five warpgroups that each walk over groups of two images on their own: while one pools
//         in registers, the others keep the tensor cores busy. Few images are spread over all SMs, one per group.
// Bound by: the tensor cores, and the issue slots that pooling takes from them; images in host memory: the bus.
#include "conv_pair_float16.cuh"

constexpr int IMAGES = 2;  // per warpgroup at a time: the 128 columns of its products
constexpr int WARPGROUPS = 5;

struct SharedStorage : Float16Storage<K_STEPS2 * FILTER2_STEP_BYTES, IMAGES, WARPGROUPS> {};

struct Products {
    template <int Count>
    static __device__ __forceinline__ void issue(float (&sums)[Count], unsigned long long pixels,
                                                 const unsigned char *filters2) {
        const unsigned long long filter = make_smem_desc(shared_address(filters2), 1024, 128);
        wgmma_fence();
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            const int at = tap_offset<IMAGES>(tap);
            wgmma_f16(sums, advance_desc(filter, 2 * tap * FILTER2_STEP_BYTES), advance_desc(pixels, at), tap == 0);
            wgmma_f16(sums, advance_desc(filter, (2 * tap + 1) * FILTER2_STEP_BYTES),
                      advance_desc(pixels, at + 2 * PLANE_BYTES * IMAGES), false);
        }
        wgmma_commit_group();
    }
};

typedef Float16Policy<IMAGES, WARPGROUPS, SharedStorage, Products> Policy;

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, 1)
    conv_pair_wgmma(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                    const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                    float16 *__restrict__ y, int images) {
    convolve_pair<IMAGES, WARPGROUPS>(Policy(), x, filters1, filters2, scales, y, images);
}
