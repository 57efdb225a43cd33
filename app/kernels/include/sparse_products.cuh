// Products of 2:4 sparse filters: kept weights, then metadata (see sparse_pair.py), both in shared memory. Products
// read metadata from registers: each thread loads CHUNK words while the products of the words before run.
#pragma once
#include "conv_pair_warpgroups.cuh"

constexpr int KEPT_BYTES = 64 * 32;     // per product
constexpr int WORDS = 13, CHUNK = 2;    // words of metadata per thread, in all and at a time
constexpr int VECTOR_BYTES = 128 * 16;  // four words of each thread
constexpr int METADATA_BYTES = (WORDS + 3) / 4 * VECTOR_BYTES;

// A thread's metadata, behind the kept weights of Products products.
template <int Products>
__device__ __forceinline__ const unsigned char *metadata_of(const unsigned char *filters2) {
    return filters2 + Products * KEPT_BYTES + thread_in_warpgroup() * 16;
}

// Issues all products. Products: their number COUNT, and multiply, which issues those of one word of metadata.
template <typename Products>
struct SparseProducts {
    template <typename Sums>
    static __device__ __forceinline__ void issue(Sums &sums, unsigned long long pixels, const unsigned char *filters2) {
        const unsigned long long filter = make_smem_desc(shared_address(filters2), 1024, 128);
        const unsigned char *metadata = metadata_of<Products::COUNT>(filters2);
        uint2 words[2];
        words[0] = load_metadata(metadata);
#pragma unroll
        for (int first = 0; first < WORDS; first += CHUNK) {
            const uint2 &chunk = words[first / CHUNK % 2];
            wgmma_fence();
            Products::multiply(sums, filter, pixels, first, chunk.x);
            if (first + 1 < WORDS) Products::multiply(sums, filter, pixels, first + 1, chunk.y);
            wgmma_commit_group();
            const int next = first + CHUNK;
            if (next >= WORDS) continue;
            if (first > 0) wgmma_wait_older_groups();
            words[next / CHUNK % 2] = load_metadata(metadata + next / 4 * VECTOR_BYTES + next % 4 * 4);
        }
    }
};
