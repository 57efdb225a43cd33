// Both convolutions of lenet5 as in step 3 for weights that are exact in float16: step 4, two products instead of three.
//
// What changed since step 3: the low halves of such weights are zero, and so are their products. A filter takes half the
// memory: all filters fit beside the pooled maps and stay there, without a ring. Pixels are multiplied by exact filters,
// so the pixel scale enters with the features' factor.
// From: none of the systems.
// Data: x (images, 28, 28) uint8; filters1, filters2 packed (see conv_pair.py) float16; scales (2);
//       y (images, 64, 4, 4) float32.
// Launch: one block per SM, three warpgroups that each walk over pairs of images on their own. Few images are spread over
//         all SMs, one a group.
// Bound by: the tensor cores, and the issue slots that pooling and adding take from them.
#include "bulk_copy.cuh"
#include "conv_pair.cuh"
#include "dependent_launch.cuh"
#include "stamps.cuh"

constexpr int IMAGES = 2;  // per warpgroup at a time: the 128 columns of its products
constexpr int WARPGROUPS = 3, THREADS = 128 * WARPGROUPS;
constexpr int TAPS = 25, FILTERS2_BYTES = STEPS2 * FILTER2_STEP_BYTES;
constexpr int PART_BYTES = IMAGES * POOLED_IMAGE_BYTES;       // high parts, then low parts
constexpr int OWN_BYTES = 2 * PART_BYTES + 2 * WINDOWS_BYTES;
static_assert(FILTERS2_BYTES + WARPGROUPS * OWN_BYTES + 8 == SHARED_BYTES, "laid out as in the row");

extern __shared__ __align__(128) unsigned char memory[];  // the second convolution's filters come first

// The second convolution of a group, or of the one image that it has, with ReLU and pooling.
template <int Images>
__device__ __forceinline__ void convolve2(float *y, const unsigned char *pooled, const float *scales, int count) {
    const unsigned long long filter = make_smem_desc(shared_address(memory), 1024, 128);
    const unsigned long long pixels =
        make_smem_desc(shared_address(pooled), PLANE_BYTES * IMAGES, ROW_BYTES * IMAGES / Images);
    float total[32 * Images] = {};
#pragma unroll 1  // unrolled, the assembler (12.9, 13.2) takes two taps' sums for the same
    for (int number = 0; number < TAPS; number++) {
        const unsigned long long tap = advance_desc(filter, number * (2 * FILTER2_STEP_BYTES));
        const unsigned long long high = advance_desc(pixels, number / 5 * IMAGES * ROW_BYTES + number % 5 * 16);
        float sums[32 * Images] = {};
        wgmma_fence();
#pragma unroll
        for (int part = 1; part >= 0; part--)  // small terms first
#pragma unroll
            for (int half = 0; half < 2; half++)
                wgmma_f16(sums, advance_desc(tap, half * FILTER2_STEP_BYTES),
                          advance_desc(high, part * PART_BYTES + half * 2 * PLANE_BYTES * IMAGES), part && half == 0);
        wgmma_commit_group();
        wgmma_wait_group(sums);
#pragma unroll
        for (int i = 0; i < 32 * Images; i++) total[i] += sums[i];
    }
    STAMP(CONV2);
    const int number = own_number(), lane = number % 32;
    const float scale2 = __ldg(scales + 1);
#pragma unroll
    for (int image = 0; image < Images; image++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float column[4];
            pooled2<Images>(column, total, image, half);
            const int map = number / 32 * 16 + half * 8 + lane / 4;
#pragma unroll
            for (int row = 0; row < 4; row++)
                if (image < count) y[image * 1024 + map * 16 + row * 4 + lane % 4] = column[row] * scale2;
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_pair_wgmma_exact(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                          const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                          float *__restrict__ y, int images) {
    STAMPS_BEGIN();
    const int group = warpgroup_number();
    // Windows first: compute-sanitizer takes the overlapping pieces that are read of them for a longer one.
    unsigned char *windows = memory + FILTERS2_BYTES + group * OWN_BYTES;
    unsigned char *pooled = windows + 2 * WINDOWS_BYTES;

    const int share = images_each<IMAGES>(images, WARPGROUPS * gridDim.x), stride = share * WARPGROUPS * gridDim.x;
    int first = (blockIdx.x + group * gridDim.x) * share;
    Pieces<IMAGES> pieces;  // requested before all else: over a bus they take longest
    load_pieces(pieces, x, first, min(share, images - first), own_number());
    unsigned long long *filters_there = (unsigned long long *)(memory + FILTERS2_BYTES + WARPGROUPS * OWN_BYTES);
    if (threadIdx.x == 0) {
        mbarrier_init(filters_there, 1);
        fence_mbarrier_init();
        cp_async_bulk(memory, filters2, FILTERS2_BYTES, filters_there);
    }
    griddepcontrol_launch_dependents();
    clear_padding(windows, own_number());
    clear_padding(windows + WINDOWS_BYTES, own_number());
    __syncthreads();

    for (; first < images; first += stride) {
        const int count = min(share, images - first), passes = 2 * count;  // columns of missing images: never stored
        const int t = own_number();
        const Places1 places = places1(IMAGES * ROW_BYTES, t);
        float even[18];
        const int piece = first_piece(x, first, t);
        stage_windows(windows, pieces, 0, piece);
        fence_proxy_async();
        warpgroup_barrier(1 + group);
        STAMP(STAGE);
#pragma unroll 1  // unrolled, the assembler (12.9, 13.2) takes both passes' sums for the same
        for (int pass = 0; pass < passes; pass++) {
            const int image = pass / 2;
            const bool odd = pass % 2;
            const Filters1 filters = load_filters1(filters1, odd, t);
            float upper[36] = {}, lower[36] = {};
            wgmma_fence();
            convolve1(upper, lower, filters, windows + image % 2 * WINDOWS_BYTES, true);
            wgmma_commit_group();
            if (odd && image + 1 < IMAGES)
                stage_windows(windows + (image + 1) % 2 * WINDOWS_BYTES, pieces, image + 1, piece);
            wgmma_wait_group(upper, lower);
            STAMP(CONV1);
            const float scale1 = __ldg(scales);
            float own[18];
#pragma unroll
            for (int i = 0; i < 18; i++) {
                const int j = 4 * (i / 2) + i % 2;
                own[i] = scale1 * ((twice_relu(upper[j]) + twice_relu(upper[j + 2])) +
                                   (twice_relu(lower[j]) + twice_relu(lower[j + 2])));
            }
            if (odd) {
#pragma unroll
                for (int i = 0; i < 18; i++) {
                    unsigned char *place = pooled + image * ROW_BYTES + places.at[i / 2 % 3] +
                                           i / 6 * (4 * IMAGES * ROW_BYTES) + i % 2 * 32;
                    const half2 high = pack_half2(even[i], own[i]);
                    *(half2 *)place = high;
                    *(half2 *)(place + PART_BYTES) =
                        pack_half2(even[i] - float(low_half(high)), own[i] - float(high_half(high)));
                }
                fence_proxy_async();
                warpgroup_barrier(1 + group);
            }
#pragma unroll
            for (int i = 0; i < 18; i++) even[i] = own[i];
            STAMP(POOL);
        }

        // The next group's images, after the last fence and before the long products.
        load_pieces(pieces, x, first + stride, min(share, images - first - stride), t);
        mbarrier_wait(filters_there, 0);
        STAMP(LOAD);
        if (passes > 2) convolve2<IMAGES>(y + first * 1024LL, pooled, scales, count);
        else convolve2<1>(y + first * 1024LL, pooled, scales, count);
        STAMP(STORE);
    }
    STAMPS_END();
}
