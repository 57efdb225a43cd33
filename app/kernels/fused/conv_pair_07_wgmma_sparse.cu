// Both convolutions of lenet5 as in step 2, the second with 2:4 sparse filters: step 7, half the tensor-core time.
//
// What changed since step 2: of every four input maps, a filter has two weights at each tap. A sparse product
// multiplies a tap's 32 maps in the time of 16. It reads the kept weights as A, and metadata that says which of four
// each is; B, the pooled maps, stays as it is. Metadata lies in registers: a warpgroup loads it for CHUNK taps at a
// time, while the products of the taps before are under way.
// From: none of the systems.
// Data: x (images, 28, 28) uint8; filters1 packed (see conv_pair.py), filters2 kept weights, then metadata (see
//       sparse_pair.py); scales (2), only the second is used; y (images, 64, 4, 4) float16.
// Launch: one block per SM; each of WARPGROUPS warpgroups computes IMAGES images at a time (the row's parameters).
//         Read convolve_pair in conv_pair_warpgroups.cuh, then convolve2 in conv_pair_float16.cuh, issue, multiply.
// Bound by: shared memory, which gives 128 bytes a clock: a product of N columns reads 2,048 bytes of A and 64 N of B in
//         the time of 64 N bytes; and the issue slots that pooling takes. Images in host memory: the bus.
#include "conv_pair_float16.cuh"
#include "sparse_products.cuh"

struct SharedStorage : Float16Storage<TAPS * KEPT_BYTES + METADATA_BYTES, IMAGES, WARPGROUPS> {};

struct Products : SparseProducts<Products> {
    static constexpr int COUNT = TAPS;
    // Multiplies two taps, or the last one. Of every four lanes, two hold the metadata of the first tap, two the other's.
    template <int Count>
    static __device__ __forceinline__ void multiply(float (&sums)[Count], unsigned long long filter,
                                                    unsigned long long pixels, int word, unsigned metadata) {
        const int tap = 2 * word;
        wgmma_f16_sparse<0>(sums, advance_desc(filter, tap * KEPT_BYTES),
                            advance_desc(pixels, tap_offset<IMAGES>(tap)), metadata, tap == 0);
        if (tap + 1 < TAPS)
            wgmma_f16_sparse<1>(sums, advance_desc(filter, (tap + 1) * KEPT_BYTES),
                                advance_desc(pixels, tap_offset<IMAGES>(tap + 1)), metadata, false);
    }
};

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, 1)
    conv_pair_wgmma_sparse(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                           const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                           float16 *__restrict__ y, int images) {
    convolve_pair<IMAGES, WARPGROUPS>(Float16Policy<IMAGES, WARPGROUPS, SharedStorage, Products>(), x, filters1,
                                      filters2, scales, y, images);
}
