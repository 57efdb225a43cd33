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
#include "bulk_copy.cuh"
#include "conv_pair.cuh"
#include "dependent_launch.cuh"
#include "stamps.cuh"

constexpr int IMAGES = 2;  // per warpgroup at a time: the 128 columns of its products
constexpr int WARPGROUPS = 5, THREADS = 128 * WARPGROUPS;
constexpr int FILTERS2_BYTES = STEPS2 * FILTER2_STEP_BYTES;
constexpr int POOLED_BYTES = IMAGES * POOLED_IMAGE_BYTES;
constexpr int OWN_BYTES = POOLED_BYTES + 2 * WINDOWS_BYTES;  // per warpgroup
static_assert(FILTERS2_BYTES + WARPGROUPS * OWN_BYTES + 16 == SHARED_BYTES, "the row must lay memory out alike");

// Shared memory: the second convolution's filters, the warpgroups' own, the barrier of the filters, the last factor.
extern __shared__ __align__(128) unsigned char memory[];
// Where a warpgroup's memory starts: its windows, then its pooled maps. Windows first: compute-sanitizer takes the
// overlapping pieces that are read of them for a longer one.
__device__ __forceinline__ unsigned char *own_memory(int group) { return memory + FILTERS2_BYTES + group * OWN_BYTES; }
__device__ __forceinline__ unsigned long long *filters_there() { return (unsigned long long *)own_memory(WARPGROUPS); }
__device__ __forceinline__ float *last_factor() { return (float *)(filters_there() + 1); }

// The second convolution of a group, or of the one image that it has, with ReLU and pooling.
template <int Images>
__device__ __forceinline__ void convolve2(float16 *y, int count) {
    // Asked for anew: else the taps' addresses are computed once, for the whole walk, and there are no registers for them.
    const unsigned char *pooled = own_memory(warpgroup_number()) + 2 * WINDOWS_BYTES;
    const unsigned long long filter = make_smem_desc(shared_address(memory), 1024, 128);
    const unsigned long long pixels =
        make_smem_desc(shared_address(pooled), PLANE_BYTES * IMAGES, ROW_BYTES * IMAGES / Images);
    float sums[32 * Images] = {};
    wgmma_fence();
#pragma unroll
    for (int tap = 0; tap < 25; tap++) {
        const int at = tap / 5 * IMAGES * ROW_BYTES + tap % 5 * 16;
        wgmma_f16(sums, advance_desc(filter, 2 * tap * FILTER2_STEP_BYTES), advance_desc(pixels, at), tap == 0);
        wgmma_f16(sums, advance_desc(filter, (2 * tap + 1) * FILTER2_STEP_BYTES),
                  advance_desc(pixels, at + 2 * PLANE_BYTES * IMAGES), false);
    }
    wgmma_commit_group();
    wgmma_wait_group(sums);
    STAMP(CONV2);
    const int number = own_number(), lane = number % 32;
    const float factor = *last_factor();
#pragma unroll
    for (int image = 0; image < Images; image++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float column[4];
            pooled2<Images>(column, sums, image, half);
#pragma unroll
            for (int row = 0; row < 4; row++) column[row] *= factor;
            const uint2 row = transposed(column, lane);
            const int map = number / 32 * 16 + half * 8 + lane / 4;
            if (image < count) *(uint2 *)(y + image * 1024 + map * 16 + lane % 4 * 4) = row;
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_pair_wgmma(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                    const uint4 *__restrict__ filters2, const float *__restrict__ scales, float16 *__restrict__ y,
                    int images) {
    STAMPS_BEGIN();
    const int group = warpgroup_number();
    unsigned char *windows = own_memory(group), *pooled = windows + 2 * WINDOWS_BYTES;

    const int share = images_each<IMAGES>(images, WARPGROUPS * gridDim.x), stride = share * WARPGROUPS * gridDim.x;
    int first = (blockIdx.x + group * gridDim.x) * share;
    Pieces<IMAGES> pieces;  // requested before all else: over a bus they take longest
    load_pieces(pieces, x, first, min(share, images - first), own_number());
    if (threadIdx.x == 0) {
        mbarrier_init(filters_there(), 1);
        fence_mbarrier_init();
        cp_async_bulk(memory, filters2, FILTERS2_BYTES, filters_there());
    }
    if (threadIdx.x == THREADS - 1) *last_factor() = scales[1];
    griddepcontrol_launch_dependents();
    clear_padding(windows, own_number());
    clear_padding(windows + WINDOWS_BYTES, own_number());
    __syncthreads();

    for (; first < images; first += stride) {
        const int t = own_number();
        const Places1 places = places1(IMAGES * ROW_BYTES, t);
        Filters1 filters = load_filters1(filters1, 0, t);
        half2 even[9];
        const int count = min(share, images - first), passes = 2 * count;  // columns of missing images: never stored
        const int piece = first_piece(x, first, t);
        stage_windows(windows, pieces, 0, piece);
        fence_proxy_async();
        warpgroup_barrier(1 + group);
        STAMP(STAGE);
#pragma unroll 1  // unrolled, the assembler (12.9, 13.2) takes both passes' sums for the same
        for (int pass = 0; pass < passes; pass++) {
            const int image = pass / 2;
            const bool odd = pass % 2;
            unsigned upper[18] = {}, lower[18] = {};
            wgmma_fence();
            convolve1(upper, lower, filters, windows + image % 2 * WINDOWS_BYTES, true);
            wgmma_commit_group();
            if (odd && image + 1 < IMAGES)
                stage_windows(windows + (image + 1) % 2 * WINDOWS_BYTES, pieces, image + 1, piece);
            wgmma_wait_group(upper, lower);
            STAMP(CONV1);
            filters = load_filters1(filters1, !odd, t);
            half2 own[9];
#pragma unroll
            for (int j = 0; j < 9; j++)
                own[j] = add(add(relu(upper[2 * j]), relu(upper[2 * j + 1])),
                             add(relu(lower[2 * j]), relu(lower[2 * j + 1])));
            if (odd) {
#pragma unroll
                for (int j = 0; j < 9; j++) {
                    unsigned char *place = pooled + image * ROW_BYTES + places.at[j % 3] + j / 3 * (4 * IMAGES * ROW_BYTES);
                    *(half2 *)place = __byte_perm(even[j], own[j], 0x5410);
                    *(half2 *)(place + 32) = __byte_perm(even[j], own[j], 0x7632);
                }
                fence_proxy_async();
                warpgroup_barrier(1 + group);
            }
#pragma unroll
            for (int j = 0; j < 9; j++) even[j] = own[j];
            STAMP(POOL);
        }

        // The next group's images, after the last fence and before the long products.
        wait_for(filters);
        load_pieces(pieces, x, first + stride, min(share, images - first - stride), t);
        mbarrier_wait(filters_there(), 0);
        STAMP(LOAD);
        if (passes > 2) convolve2<IMAGES>(y + first * 1024LL, count);
        else convolve2<1>(y + first * 1024LL, count);
        STAMP(STORE);
    }
    STAMPS_END();
}
