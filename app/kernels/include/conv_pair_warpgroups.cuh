// Shared by the warpgroup kernels of lenet5's two convolutions, with the loop over images. A policy defines the
// arithmetic of both convolutions, the pooling between them, and how the second filters reach shared memory.
//
// An image is staged as windows of eight float16 pixels (16 bytes), one at every fourth column of every row. So eight
// neighbouring windows are a core matrix of wgmma wherever they start.
#pragma once
#include "bulk_copy.cuh"
#include "conv_pair.cuh"
#include "dependent_launch.cuh"
#include "shared_storage.cuh"
#include "stamps.cuh"
#include "wgmma.cuh"

constexpr int WINDOW_ROW_BYTES = 6 * 16;                  // six windows
constexpr int WINDOW_HALF_BYTES = 15 * WINDOW_ROW_BYTES;  // even rows, then odd rows, each with a row of padding
constexpr int WINDOWS_BYTES = 2 * WINDOW_HALF_BYTES;      // per image

// Shared memory: the second filters, then for each warpgroup the windows of two images, used alternately, and the
// pooled maps of its group of images; a kernel adds its barriers. Windows come first, because compute-sanitizer assumes
// that their overlapping reads extend beyond them.
template <int Filters2Bytes, int PooledBytes, int Warpgroups>
struct PairStorage {
    static constexpr int POOLED_AT = 2 * WINDOWS_BYTES, GROUP_BYTES = POOLED_AT + PooledBytes;
    unsigned char filters2[Filters2Bytes];
    unsigned char groups[Warpgroups][GROUP_BYTES];
    // Computed instead of groups[group].windows, whose address would occupy registers that the sums need.
    static __device__ __forceinline__ unsigned char *windows(int group) {
        return memory + Filters2Bytes + group * GROUP_BYTES;
    }
    static __device__ __forceinline__ unsigned char *pooled(int group) { return windows(group) + POOLED_AT; }
};

// This thread's index in its warpgroup. Recomputed on purpose: values derived from it would otherwise stay in registers
// that the sums need.
__device__ __forceinline__ int thread_in_warpgroup() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index % 128;
}

// How many images each warpgroup takes at a time: Most, or fewer if there are warpgroups for all images.
template <int Most>
__device__ __forceinline__ int images_per_warpgroup(int images, int warpgroups) {
    return min(Most, (images + warpgroups - 1) / warpgroups);
}

// The vectors of 16 bytes that a thread loads of its warpgroup's images, 49 per image: number ``first_vector`` and
// every 128th after it. They are contiguous, which is fast over a bus, too: images may be in page-locked host memory.
template <int Images>
struct ImageVectors {
    uint4 vector[(49 * Images + 7 + 127) / 128] = {};
};

// Threads count from the start of a line of 128 bytes, so that no two warps of a group read the same line, which a bus
// would transfer twice.
__device__ __forceinline__ int first_vector(const unsigned char *x, int first, int t) {
    return t - int(((unsigned long long)x / sizeof(uint4) + first * 49U) % 8);
}

// Loads the vectors; those of images beyond ``count`` do not change.
template <int Images>
__device__ __forceinline__ void load_images(ImageVectors<Images> &vectors, const unsigned char *x, int first, int count,
                                            int t) {
    const uint4 *source = (const uint4 *)x + first * 49LL;
    const int begin = first_vector(x, first, t), end = 49 * count;
#pragma unroll
    for (int i = 0; i < sizeof(vectors) / sizeof(uint4); i++)
        if (begin + 128 * i >= 0 && begin + 128 * i < end) vectors.vector[i] = __ldg(source + begin + 128 * i);
}

// Writes four pixels of an image, number ``word``: the left half of one window, and the right half of the one before.
__device__ __forceinline__ void stage_word(unsigned char *windows, unsigned pixels, int word) {
    const int row = word / 7, column = word % 7;
    const uint2 four = make_uint2(to_half2(pixels, 0x4140), to_half2(pixels, 0x4342));
    unsigned char *at = windows + row % 2 * WINDOW_HALF_BYTES + row / 2 * WINDOW_ROW_BYTES + column * 16;
    if (column < 6) *(uint2 *)at = four;
    if (column > 0) *(uint2 *)(at - 8) = four;
}

// Writes the windows of one image. first: the thread's first vector.
template <int Images>
__device__ __forceinline__ void stage_windows(unsigned char *windows, const ImageVectors<Images> &vectors, int image,
                                              int first) {
#pragma unroll
    for (int i = 0; i < sizeof(vectors) / sizeof(uint4); i++) {
        const int number = first + 128 * i - 49 * image;
        if (number < 0 || number >= 49) continue;
        const uint4 &vector = vectors.vector[i];
        const unsigned words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
        for (int j = 0; j < 4; j++) stage_word(windows, words[j], 4 * number + j);
    }
}

// Clears the rows below the image, which are multiplied by zeros and so must not be NaN.
__device__ __forceinline__ void clear_padding(unsigned char *windows, int t) {
    if (t >= 12) return;
    unsigned char *half = windows + t / 6 * WINDOW_HALF_BYTES;
    *(uint4 *)(half + 14 * WINDOW_ROW_BYTES + t % 6 * 16) = make_uint4(0, 0, 0, 0);
}

// A thread's fragments of the first convolution's even or odd filters: rows 0 and 2, 1 and 3, 4 and zeros.
struct Filters1 {
    uint4 k_step[3];
};
__device__ __forceinline__ Filters1 load_filters1(const uint4 *filters, int odd_maps, int t) {
    const uint4 *from = filters + odd_maps * (3 * 128) + t;
    return {{__ldg(from), __ldg(from + 128), __ldg(from + 256)}};
}

// Waits until the filters are loaded. Otherwise the assembler makes the next products wait for them and for all loads
// since: those of the next images, which may still be on the bus.
__device__ __forceinline__ void wait_for_loads(const Filters1 &filters) {
    // This word is always zero, from the row below the filters. The compiler cannot remove the use.
    asm volatile("{ .reg .pred never; setp.ne.u32 never, %0, 0; @never trap; }" ::"r"(filters.k_step[2].w) : "memory");
}

// Starts the first convolution of a staged image with those filters. The 64 rows of a product are 16 maps at four
// neighbouring columns; its 72 columns are the six windows of twelve rows. upper: rows 0, 2, …; lower: rows 1, 3, …
// Sums: float32, or pairs of float16.
template <typename Sums>
__device__ __forceinline__ void convolve1(Sums &upper, Sums &lower, const Filters1 &filters,
                                          const unsigned char *windows, bool clear) {
    const unsigned long long rows = make_smem_desc(shared_address(windows), WINDOW_ROW_BYTES, 128);
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const int even_row = k == 1 ? WINDOW_HALF_BYTES : k * WINDOW_ROW_BYTES;
        const int odd_row = k == 1 ? WINDOW_ROW_BYTES : WINDOW_HALF_BYTES + k * WINDOW_ROW_BYTES;
        wgmma_f16(upper, filters.k_step[k], advance_desc(rows, even_row), clear && k == 0);
        wgmma_f16(lower, filters.k_step[k], advance_desc(rows, odd_row), clear && k == 0);
    }
}

// Offsets of this thread's results of convolve1, pairs of channels, in an image's pooled maps: at(pooled, j) for
// columns 8 * j + 2 * (lane % 4) of the products, 32 bytes more for the next column. Rows are RowStride bytes apart; a
// channel has Bytes bytes, and a pixel 16 in each plane.
template <int RowStride>
struct PooledOffsets {
    int first_rows[3];  // four rows more for every three of j
    __device__ __forceinline__ unsigned char *at(unsigned char *pooled, int j) const {
        return pooled + first_rows[j % 3] + j / 3 * (4 * RowStride);
    }
};
template <int RowStride, int Bytes>
__device__ __forceinline__ PooledOffsets<RowStride> pooled_offsets(int t) {
    const int warp = t / 32, lane = t % 32;
    const int channel = (8 * warp + lane / 4 % 4 * 2) * Bytes;
    const int first = channel / 16 * 12 * RowStride + lane / 16 * 16 + channel % 16;
    PooledOffsets<RowStride> offsets;
#pragma unroll
    for (int j = 0; j < 3; j++) {
        const int window = 8 * j + 2 * (lane % 4);
        offsets.first_rows[j] = first + window / 6 * RowStride + window % 6 * 32;
    }
    return offsets;
}

// The matrix descriptor of the second convolution's pixels: Columns of them, of Images whose rows alternate.
template <int Columns, int Images>
__device__ __forceinline__ unsigned long long pixels_desc(const unsigned char *pooled) {
    return make_smem_desc(shared_address(pooled), PLANE_BYTES * Images, ROW_BYTES * Images / Columns);
}
// The offset in bytes of the pixels under a tap.
template <int Images>
__device__ __forceinline__ int tap_offset(int tap) {
    return tap / 5 * Images * ROW_BYTES + tap % 5 * 16;
}

// The first convolution with float16 sums, which take half the registers; its results are rounded to float16 anyway.
struct Float16Sums {
    static constexpr bool FILTERS_AHEAD = true;  // loaded while the products of the pass before run
    typedef Filters1 Filters;
    typedef unsigned Sums[18];
    static __device__ __forceinline__ void load(Filters &filters, const uint4 *filters1, bool odd, int t) {
        filters = load_filters1(filters1, odd, t);
    }
    static __device__ __forceinline__ void convolve(Sums &upper, Sums &lower, const Filters &filters,
                                                    const unsigned char *windows) {
        convolve1(upper, lower, filters, windows, true);
    }
};

// Second filters that fit in shared memory and stay there.
template <typename Storage>
struct ResidentFilters {
    static constexpr bool STREAMED = false;
    typedef Storage SharedStorage;
    // Called before the block's first barrier: starts the copy of the filters.
    static __device__ __forceinline__ void begin(const unsigned char *filters2, const float *) {
        if (threadIdx.x > 0) return;
        Storage &smem = shared_storage<Storage>();
        mbarrier_init(&smem.filters_full, 1);
        fence_mbarrier_init();
        cp_async_bulk(smem.filters2, filters2, sizeof(smem.filters2), &smem.filters_full);
    }
    static __device__ __forceinline__ void wait() { mbarrier_wait(&shared_storage<Storage>().filters_full, 0); }
};

// Both convolutions of this block's images, with at most Images per warpgroup at a time. A policy has
//   First: the types Filters, Sums and Maps of the first convolution, and functions that load, multiply, pool and store;
//   SharedStorage, begin, wait, convolve2<Columns>: the second convolution, of a group's images or of a single image;
//   STREAMED: whether its filters are streamed, so that a warpgroup without images must skip them in step.
template <int Images, int Warpgroups, typename Policy, typename Output>
__device__ __forceinline__ void convolve_pair(Policy policy, const unsigned char *x, const uint4 *filters1,
                                              const unsigned char *filters2, const float *scales,
                                              Output *y, int images) {
    typedef typename Policy::First First;
    typedef typename Policy::SharedStorage SharedStorage;
    STAMPS_BEGIN();
    const int group = warpgroup_index();
    // One address, written in the form that compiles best: folded into accesses if filters take registers, else in one
    // register.
    unsigned char *windows = First::FILTERS_AHEAD
                                 ? SharedStorage::windows(group)
                                 : memory + sizeof(SharedStorage::filters2) + group * SharedStorage::GROUP_BYTES;
    unsigned char *pooled = windows + SharedStorage::POOLED_AT;

    const int share = images_per_warpgroup<Images>(images, Warpgroups * gridDim.x);
    const int stride = share * Warpgroups * gridDim.x;
    int first = (blockIdx.x + group * gridDim.x) * share;
    ImageVectors<Images> vectors;  // requested first: over a bus they take longest
    load_images(vectors, x, first, min(share, images - first), thread_in_warpgroup());
    const int rounds = (images - (int)blockIdx.x * share + stride - 1) / stride;  // the first warpgroup has most
    policy.begin(filters2, scales);
    griddepcontrol_launch_dependents();
    clear_padding(windows, thread_in_warpgroup());
    clear_padding(windows + WINDOWS_BYTES, thread_in_warpgroup());
    __syncthreads();

    for (int round = 0; Policy::STREAMED ? round < rounds : first < images; round++, first += stride) {
        const int count = min(share, images - first), passes = 2 * count;  // columns of missing images are never stored
        if constexpr (Policy::STREAMED) {
            policy.last_round = round + 1 == rounds;
            if (count <= 0) {
                policy.skip_taps();
                continue;
            }
        }
        const int t = thread_in_warpgroup();
        const auto offsets = pooled_offsets<Images * ROW_BYTES, First::BYTES>(t);
        typename First::Filters filters;
        if (First::FILTERS_AHEAD) First::load(filters, filters1, false, t);
        typename First::Maps even;
        const int vector = first_vector(x, first, t);
        stage_windows(windows, vectors, 0, vector);
        fence_proxy_async();
        warpgroup_barrier(1 + group);
        STAMP(STAGE);
#pragma unroll 1  // if unrolled, the assembler (12.9, 13.2) confuses both passes' sums
        for (int pass = 0; pass < passes; pass++) {
            const int image = pass / 2;
            const bool odd = pass % 2;
            if (!First::FILTERS_AHEAD) First::load(filters, filters1, odd, t);
            typename First::Sums upper = {}, lower = {};
            wgmma_fence();
            First::convolve(upper, lower, filters, windows + image % 2 * WINDOWS_BYTES);
            wgmma_commit_group();
            if (odd && image + 1 < Images)
                stage_windows(windows + (image + 1) % 2 * WINDOWS_BYTES, vectors, image + 1, vector);
            wgmma_wait_group(upper, lower);
            STAMP(CONV1);
            if (First::FILTERS_AHEAD) First::load(filters, filters1, !odd, t);
            typename First::Maps maps;
            First::pool(maps, upper, lower, scales);
            if (odd) {
                First::store(pooled + image * ROW_BYTES, offsets, even, maps);
                fence_proxy_async();
                warpgroup_barrier(1 + group);
            }
            First::keep(even, maps, odd);
            STAMP(POOL);
        }

        // The next group's images are requested after the last fence and before the long products.
        if constexpr (First::FILTERS_AHEAD) wait_for_loads(filters);
        load_images(vectors, x, first + stride, min(share, images - first - stride), t);
        policy.wait();
        STAMP(LOAD);
        if (passes > 2) policy.template convolve2<Images>(y + first * 1024LL, pooled, count);
        else policy.template convolve2<1>(y + first * 1024LL, pooled, count);
        STAMP(STORE);
    }
    STAMPS_END();
}
