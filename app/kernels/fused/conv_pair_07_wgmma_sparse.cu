// Both convolutions of lenet5 as in step 2, the second with 2:4 sparse filters: step 7, half the tensor-core time.
//
// What changed since step 2: of every four input maps, a filter has two weights at each tap. A sparse product multiplies
// a tap's 32 maps in the time of 16. It reads the kept weights as A, and metadata that says which of four each is; B, the
// pooled maps, stays as it is. Metadata lies in registers: a warpgroup loads it for CHUNK taps at a time, while the
// products of the taps before are under way.
// From: none of the systems.
// Data: as step 2; filters2: kept weights, then metadata (see sparse_pair.py).
// Launch: as step 2, with IMAGES images in each of WARPGROUPS warpgroups at a time.
// Bound by: shared memory, which gives 128 bytes a clock: a product of N columns reads 2,048 bytes of A and 64 N of B in
//         the time of 64 N bytes; and the issue slots that pooling takes. Images in host memory: the bus.
#include "conv_pair_float16.cuh"

constexpr int TAP_BYTES = FILTER2_STEP_BYTES, VECTORS = (TAPS + 7) / 8, VECTOR_BYTES = 128 * 16;
constexpr int CHUNK = 4, CHUNKS = (TAPS + CHUNK - 1) / CHUNK;  // taps of two words of metadata

struct SharedStorage : Float16Storage<TAPS * TAP_BYTES + VECTORS * VECTOR_BYTES, IMAGES, WARPGROUPS> {};

struct Products {
    template <int Count>
    static __device__ __forceinline__ void issue(float (&sums)[Count], unsigned long long pixels,
                                                 const unsigned char *filters2) {
        const unsigned long long filter = make_smem_desc(shared_address(filters2), 1024, 128);
        const unsigned char *metadata = filters2 + TAPS * TAP_BYTES + thread_in_warpgroup() * 16;
        uint2 words[2];
        words[0] = load_metadata(metadata);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                const int tap = CHUNK * chunk + i;
                if (tap >= TAPS) continue;
                const unsigned long long a = advance_desc(filter, tap * TAP_BYTES);
                const unsigned long long b = advance_desc(pixels, tap_offset<IMAGES>(tap));
                const unsigned word = i / 2 ? words[chunk % 2].y : words[chunk % 2].x;
                if (tap % 2) wgmma_f16_sparse<1>(sums, a, b, word, false);
                else wgmma_f16_sparse<0>(sums, a, b, word, tap == 0);
            }
            wgmma_commit_group();
            if (chunk + 1 == CHUNKS) continue;
            if (chunk > 0) wgmma_wait_older_groups();
            const int next = chunk + 1;
            words[next % 2] = load_metadata(metadata + next / 2 * VECTOR_BYTES + next % 2 * 8);
        }
    }
};

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, 1)
    conv_pair_wgmma_sparse(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                           const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                           float16 *__restrict__ y, int images) {
    convolve_pair<IMAGES, WARPGROUPS>(Float16Policy<IMAGES, WARPGROUPS, SharedStorage, Products>(), x, filters1,
                                      filters2, scales, y, images);
}
