// Both convolutions of lenet5 as in step 3 for weights that are exact in float16: step 4, two products instead of
// three.
//
// What changed since step 3: the low halves of such weights are zero, and so are their products. A filter takes half
// the memory: all filters fit beside the pooled maps and stay there, without a ring. Pixels are multiplied by exact
// filters, so the pixel scale enters with the features' factor.
// From: none of the systems.
// Data: x (images, 28, 28) uint8; filters1, filters2 packed (see conv_pair.py) float16; scales (2);
//       y (images, 64, 4, 4) float32.
// Launch: one block per SM, three warpgroups that each walk over pairs of images on their own. Few images are spread
//         over all SMs, one per group.
// Bound by: the tensor cores, and the issue slots that pooling and adding take from them.
#include "conv_pair_split.cuh"

struct SharedStorage : PairStorage<K_STEPS2 * FILTER2_STEP_BYTES, 2 * PART_BYTES, WARPGROUPS> {
    unsigned long long filters_full;  // barrier
};

struct Policy : ResidentFilters<SharedStorage> {
    typedef SplitMaps<1> First;
    const float *scales;

    // The second convolution with ReLU and pooling, of a full group of images or of a single image.
    template <int Columns>
    __device__ __forceinline__ void convolve2(float *y, const unsigned char *pooled, int count) {
        const unsigned long long filter =
            make_smem_desc(shared_address(shared_storage<SharedStorage>().filters2), 1024, 128);
        const unsigned long long pixels = pixels_desc<Columns, IMAGES>(pooled);
        float total[32 * Columns] = {};
#pragma unroll 1  // if unrolled, the assembler (12.9, 13.2) confuses two taps' sums
        for (int number = 0; number < TAPS; number++) {
            const unsigned long long tap = advance_desc(filter, number * (2 * FILTER2_STEP_BYTES));
            const unsigned long long high = advance_desc(pixels, tap_offset<IMAGES>(number));
            float sums[32 * Columns] = {};
            wgmma_fence();
#pragma unroll
            for (int part = 1; part >= 0; part--)  // small terms first
#pragma unroll
                for (int half = 0; half < 2; half++)
                    wgmma_f16(sums, advance_desc(tap, half * FILTER2_STEP_BYTES),
                              advance_desc(high, part * PART_BYTES + half * 2 * PLANE_BYTES * IMAGES),
                              part && half == 0);
            wgmma_commit_group();
            wgmma_wait_group(sums);
#pragma unroll
            for (int i = 0; i < 32 * Columns; i++) total[i] += sums[i];
        }
        store_features<Columns>(y, total, scales, count);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_pair_wgmma_exact(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                          const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                          float *__restrict__ y, int images) {
    convolve_pair<IMAGES, WARPGROUPS>(Policy{{}, scales}, x, filters1, filters2,
                                      scales, y, images);
}
