// Both convolutions of lenet5 as in step 4, the second with 2:4 sparse filters: step 8, half the tensor-core time.
//
// What changed since step 4: of every four input maps, a filter has two weights at each tap, as in step 7. Two taps
// have as many products as one tap of dense filters, so the tensor cores add up two before ordinary additions take
// over: half of these additions, and as exact. One register of metadata serves both taps.
// From: none of the systems.
// Data: as step 7, but y (images, 64, 4, 4) is float32, and the scales of both layers are used.
// Launch: one block per SM; a warpgroup computes IMAGES images at a time. The loop over images is convolve_pair in
//         conv_pair_warpgroups.cuh; it calls convolve2 below.
// Bound by: shared memory, as step 7, and the issue slots that pooling and adding take.
#include "conv_pair_split.cuh"
#include "sparse_products.cuh"

struct SharedStorage : PairStorage<TAPS * KEPT_BYTES + METADATA_BYTES, 2 * PART_BYTES, WARPGROUPS> {
    unsigned long long filters_full;  // barrier
};

struct Policy : ResidentFilters<SharedStorage> {
    typedef SplitMaps<1> First;
    const float *scales;

    // Adds the products of Taps taps, 1 or 4, from number ``first`` on, a multiple of 4.
    template <int Taps, int Count>
    static __device__ __forceinline__ void add_taps(float (&total)[Count], unsigned long long filter,
                                                    unsigned long long pixels, const unsigned char *metadata, int first) {
        const uint2 words = load_metadata(metadata + first / 8 * VECTOR_BYTES + first % 8 * 2);
        float sums[Count] = {};
        wgmma_fence();
#pragma unroll
        for (int part = 1; part >= 0; part--) {  // small terms first
            const unsigned long long maps = advance_desc(pixels, part * PART_BYTES);
#pragma unroll
            for (int tap = first; tap < first + Taps; tap++) {
                const unsigned long long a = advance_desc(filter, tap * KEPT_BYTES);
                const unsigned long long b = advance_desc(maps, tap_offset<IMAGES>(tap));
                const unsigned word = tap - first < 2 ? words.x : words.y;
                if ((tap - first) % 2) wgmma_f16_sparse<1>(sums, a, b, word, false);
                else wgmma_f16_sparse<0>(sums, a, b, word, part == 1 && tap == first);
            }
        }
        wgmma_commit_group();
        wgmma_wait_group(sums);
#pragma unroll
        for (int i = 0; i < Count; i++) total[i] += sums[i];
    }

    // The second convolution with ReLU and pooling, of a full group of images or of a single image.
    template <int Columns>
    __device__ __forceinline__ void convolve2(float *y, const unsigned char *pooled, int count) {
        const unsigned char *filters2 = shared_storage<SharedStorage>().filters2;
        const unsigned char *metadata = metadata_of<TAPS>(filters2);
        const unsigned long long filter = make_smem_desc(shared_address(filters2), 1024, 128);
        const unsigned long long pixels = pixels_desc<Columns, IMAGES>(pooled);
        float total[32 * Columns] = {};
#pragma unroll 1  // if unrolled, the assembler (12.9, 13.2) confuses two taps' sums
        for (int tap = 0; tap + 3 < TAPS; tap += 4) add_taps<4>(total, filter, pixels, metadata, tap);
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
