// Both convolutions of lenet5 as in step 5, the second with 2:4 sparse filters: step 9, half the tensor-core time.
//
// What changed since step 5: of every four input maps, a filter has two weights at each tap, as in step 7. A sparse
// product of bytes has k = 64, twice the maps of a tap. The four core matrices of its B may be any that lie at one
// distance, so a product takes four taps of 16 maps: the first four of a filter row, a pixel apart, or the last ones of
// four rows, a row apart. The 25th taps of both halves of the maps are one more product. Its other two core matrices
// meet weights of zero; half as far apart, all four lie in this warpgroup's shared memory.
// From: none of the systems.
// Data: as step 5; filters2: kept weights, then metadata (see sparse_pair.py).
// Launch: as step 5.
// Bound by: the issue slots that pooling takes, and shared memory, as step 7. Images in host memory: the bus.
#include "conv_pair_int8.cuh"
#include "sparse_products.cuh"

struct SharedStorage : ByteStorage<WORDS * KEPT_BYTES + METADATA_BYTES, IMAGES, WARPGROUPS> {
    // Never read: compute-sanitizer assumes that the pixels of a product, 64 bytes per column, are contiguous.
    unsigned char behind[IMAGES * (4 * ROW_BYTES + 64 * 64 - PLANE_BYTES)];
};

// The descriptor of the pixels of a product's four parts. pixels: that of the first tap.
__device__ __forceinline__ unsigned long long product_pixels(unsigned long long pixels, int product) {
    constexpr int ROW = IMAGES * ROW_BYTES, PLANE = IMAGES * PLANE_BYTES;
    const int half = product / 6, row = product % 6;  // of the maps, of the filters
    if (half == 2) return strided_desc(advance_desc(pixels, tap_offset<IMAGES>(24) - PLANE / 2), -PLANE / 2);
    if (row == 5) return strided_desc(advance_desc(pixels, half * PLANE + tap_offset<IMAGES>(4)), ROW - PLANE);
    return strided_desc(advance_desc(pixels, half * PLANE + tap_offset<IMAGES>(5 * row)), 16 - PLANE);
}

struct Products : SparseProducts<Products> {
    static constexpr int COUNT = WORDS;
    template <int Count>
    static __device__ __forceinline__ void multiply(int (&sums)[Count], unsigned long long filter,
                                                    unsigned long long pixels, int word, unsigned metadata) {
        wgmma_s8_u8_sparse<0>(sums, advance_desc(filter, word * KEPT_BYTES), product_pixels(pixels, word), metadata,
                              word == 0);
    }
};

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, 1)
    conv_pair_wgmma_sparse_int8(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                                const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                                float16 *__restrict__ y, int images) {
    convolve_pair<IMAGES, WARPGROUPS>(BytePolicy<IMAGES, SharedStorage, Products>{{}, scales}, x, filters1, filters2,
                                      scales, y, images);
}
