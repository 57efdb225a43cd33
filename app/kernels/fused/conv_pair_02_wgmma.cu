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
//         in registers, the others keep the tensor cores busy. Few images are spread over all SMs, one a group.
// Bound by: the tensor cores, and the issue slots that pooling takes from them; images in host memory: the bus.
#include "conv_pair_warpgroups.cuh"

constexpr int IMAGES = 2;  // per warpgroup at a time: the 128 columns of its products
constexpr int WARPGROUPS = 5, THREADS = 128 * WARPGROUPS;

struct SharedStorage : PairStorage<K_STEPS2 * FILTER2_STEP_BYTES, IMAGES * POOLED_IMAGE_BYTES, WARPGROUPS> {
    unsigned long long filters_full;  // barrier
    float last_factor;
};

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

struct Policy : ResidentFilters<SharedStorage> {
    typedef Float16Maps First;

    static __device__ __forceinline__ void begin(const unsigned char *filters2, const float *scales) {
        ResidentFilters::begin(filters2, scales);
        if (threadIdx.x == THREADS - 1) shared_storage<SharedStorage>().last_factor = scales[1];
    }

    // The second convolution of a group, or of the one image that it has, with ReLU and pooling.
    template <int Columns>
    __device__ __forceinline__ void convolve2(float16 *y, const unsigned char *, int count) {
        SharedStorage &smem = shared_storage<SharedStorage>();
        // Recomputed on purpose: hoisted, the taps' addresses would take registers that the sums need.
        const unsigned long long pixels = pixels_desc<Columns, IMAGES>(SharedStorage::pooled(warpgroup_index()));
        const unsigned long long filter = make_smem_desc(shared_address(smem.filters2), 1024, 128);
        float sums[32 * Columns] = {};
        wgmma_fence();
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            const int at = tap_offset<IMAGES>(tap);
            wgmma_f16(sums, advance_desc(filter, 2 * tap * FILTER2_STEP_BYTES), advance_desc(pixels, at), tap == 0);
            wgmma_f16(sums, advance_desc(filter, (2 * tap + 1) * FILTER2_STEP_BYTES),
                      advance_desc(pixels, at + 2 * PLANE_BYTES * IMAGES), false);
        }
        wgmma_commit_group();
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_pair_wgmma(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                    const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                    float16 *__restrict__ y, int images) {
    convolve_pair<IMAGES, WARPGROUPS>(Policy(), x, filters1, filters2, scales, y, images);
}
