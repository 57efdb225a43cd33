// Both convolutions of lenet5 as in step 4, the second with 2:4 sparse filters: step 8, half the tensor-core time.
//
// What changed since step 4: of every four input maps, a filter has two weights at each tap, as in step 7. Two taps have
// as many products as one tap of dense filters, so the tensor cores add up two before ordinary additions take over:
// half of these additions, and as exact. One register of metadata serves both taps.
// From: none of the systems.
// Data: as step 4; filters2: kept weights, then metadata (see sparse_pair.py).
// Launch: as step 4.
// Bound by: shared memory, as step 7, and the issue slots that pooling and adding take.
#include "conv_pair_split.cuh"
#include "sparse_products.cuh"

struct SharedStorage : PairStorage<TAPS * KEPT_BYTES + METADATA_BYTES, 2 * PART_BYTES, WARPGROUPS> {
    unsigned long long filters_full;  // barrier
};

struct Policy : ResidentFilters<SharedStorage> {
    typedef SplitMaps<1> First;
    const float *scales;

    // Adds the products of Taps taps, 1 or 2, from number ``first`` on, which is even.
    template <int Taps, int Count>
    static __device__ __forceinline__ void add_taps(float (&total)[Count], unsigned long long filter,
                                                    unsigned long long pixels, const unsigned char *metadata, int first) {
        const unsigned word = *(const unsigned *)(metadata + first / 8 * VECTOR_BYTES + first % 8 / 2 * 4);
        float sums[Count] = {};
        wgmma_fence();
#pragma unroll
        for (int part = 1; part >= 0; part--) {  // small terms first
            const unsigned long long maps = advance_desc(pixels, part * PART_BYTES);
            wgmma_f16_sparse<0>(sums, advance_desc(filter, first * KEPT_BYTES),
                                advance_desc(maps, tap_offset<IMAGES>(first)), word, part == 1);
            if constexpr (Taps == 2)
                wgmma_f16_sparse<1>(sums, advance_desc(filter, (first + 1) * KEPT_BYTES),
                                    advance_desc(maps, tap_offset<IMAGES>(first + 1)), word, false);
        }
        wgmma_commit_group();
        wgmma_wait_group(sums);
#pragma unroll
        for (int i = 0; i < Count; i++) total[i] += sums[i];
    }

    // The second convolution of a group, or of the one image that it has, with ReLU and pooling.
    template <int Columns>
    __device__ __forceinline__ void convolve2(float *y, const unsigned char *pooled, int count) {
        const unsigned char *filters2 = shared_storage<SharedStorage>().filters2;
        const unsigned char *metadata = metadata_of<TAPS>(filters2);
        const unsigned long long filter = make_smem_desc(shared_address(filters2), 1024, 128);
        const unsigned long long pixels = pixels_desc<Columns, IMAGES>(pooled);
        float total[32 * Columns] = {};
#pragma unroll 1  // unrolled, the assembler (12.9, 13.2) takes two taps' sums for the same
        for (int tap = 0; tap + 1 < TAPS; tap += 2) add_taps<2>(total, filter, pixels, metadata, tap);
        add_taps<1>(total, filter, pixels, metadata, TAPS - 1);
        store_features<Columns>(y, total, scales, count);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_pair_wgmma_sparse_exact(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                                 const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                                 float *__restrict__ y, int images) {
    convolve_pair<IMAGES, WARPGROUPS>(Policy{{}, scales}, x, filters1, filters2, scales, y, images);
}
