// Both convolutions of lenet5 as in step 2, as exact as float32: step 3, split operands.
//
// What changed since step 2: an activation and a filter are each the sum of two float16, high and low, and a product is
// high x high + high x low + low x high; the pixels, 0 to 255, are float16 already. The second convolution's filters
// take twice the memory and no longer fit beside the pooled maps, so they stream through a ring, tap by tap. The tensor
// cores cut off what they add, which shows in long sums: each tap is summed there, the taps in the usual way.
// From: none of the systems.
// Data: x (images, 28, 28) uint8; filters1, filters2 packed (see conv_pair.py) float16; scales (2);
//       y (images, 64, 4, 4) float32.
// Launch: one block per SM, three warpgroups that each walk over pairs of images.
// Bound by: the tensor cores, and the issue slots that pooling and adding take from them.
#include "bulk_copy.cuh"
#include "conv_pair.cuh"
#include "dependent_launch.cuh"
#include "stamps.cuh"

constexpr int IMAGES = 2;  // per warpgroup at a time: the 128 columns of its products
constexpr int WARPGROUPS = 3, THREADS = 128 * WARPGROUPS;
constexpr int TAPS = 25, TAP_BYTES = 4 * FILTER2_STEP_BYTES;  // high and low, two steps of 16 channels
constexpr int STAGES = 12;                                    // taps in the ring
constexpr int PART_BYTES = IMAGES * POOLED_IMAGE_BYTES;       // high parts, then low parts
constexpr int OWN_BYTES = 2 * PART_BYTES + 2 * WINDOWS_BYTES;
static_assert(STAGES * TAP_BYTES + WARPGROUPS * OWN_BYTES + STAGES * (8 + 4) == SHARED_BYTES, "laid out as in the row");

// Shared memory: the ring of taps, windows and pooled maps of each warpgroup, barriers.
extern __shared__ __align__(128) unsigned char memory[];
__device__ __forceinline__ unsigned long long *full() {
    return (unsigned long long *)(memory + STAGES * TAP_BYTES + WARPGROUPS * OWN_BYTES);
}
__device__ __forceinline__ unsigned *readers() { return (unsigned *)(full() + STAGES); }  // warps that are done with a tap

// This warp is done with a tap. The last one brings the tap that takes its place, unless this is the last round.
__device__ __forceinline__ void release_tap(const unsigned char *filters2, Ring<STAGES> &ring, int number,
                                            bool last_round) {
    if (own_number() % 32 == 0 && arrives_last(readers() + ring.stage, THREADS / 32) &&
        (!last_round || number + STAGES < TAPS))
        cp_async_bulk(memory + ring.stage * TAP_BYTES, filters2 + (number + STAGES) % TAPS * TAP_BYTES, TAP_BYTES,
                      full() + ring.stage);
    ring.advance();
}

// A warpgroup without images keeps step with the ring.
__device__ __forceinline__ void skip_taps(const unsigned char *filters2, Ring<STAGES> &ring, bool last_round) {
    for (int number = 0; number < TAPS; number++) {
        mbarrier_wait(full() + ring.stage, ring.phase);
        release_tap(filters2, ring, number, last_round);
    }
}

// The second convolution of a group, or of the one image that it has, with ReLU and pooling.
template <int Images>
__device__ __forceinline__ void convolve2(float *y, const unsigned char *pooled, const unsigned char *filters2,
                                          const float *scales, Ring<STAGES> &ring, int count, bool last_round) {
    const unsigned long long filter = make_smem_desc(shared_address(memory), 1024, 128);
    const unsigned long long pixels =
        make_smem_desc(shared_address(pooled), PLANE_BYTES * IMAGES, ROW_BYTES * IMAGES / Images);
    float total[32 * Images] = {};
#pragma unroll 1  // unrolled, the assembler (12.9, 13.2) takes two taps' sums for the same
    for (int number = 0; number < TAPS; number++) {
        mbarrier_wait(full() + ring.stage, ring.phase);
        const unsigned long long tap = advance_desc(filter, ring.stage * TAP_BYTES);
        const unsigned long long high = advance_desc(pixels, number / 5 * IMAGES * ROW_BYTES + number % 5 * 16);
        const unsigned long long low = advance_desc(high, PART_BYTES);
        float sums[32 * Images] = {};
        wgmma_fence();
#pragma unroll
        for (int half = 0; half < 2; half++) {  // small terms first
            const int channels = half * 2 * PLANE_BYTES * IMAGES, step = half * FILTER2_STEP_BYTES;
            wgmma_f16(sums, advance_desc(tap, step), advance_desc(low, channels), half == 0);
            wgmma_f16(sums, advance_desc(tap, step + 2 * FILTER2_STEP_BYTES), advance_desc(high, channels), false);
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            wgmma_f16(sums, advance_desc(tap, half * FILTER2_STEP_BYTES),
                      advance_desc(high, half * 2 * PLANE_BYTES * IMAGES), false);
        wgmma_commit_group();
        wgmma_wait_group(sums);
        release_tap(filters2, ring, number, last_round);
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
    conv_pair_wgmma_split(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                          const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                          float *__restrict__ y, int images) {
    STAMPS_BEGIN();
    const int group = warpgroup_number();
    // Windows first: compute-sanitizer takes the overlapping pieces that are read of them for a longer one.
    unsigned char *windows = memory + STAGES * TAP_BYTES + group * OWN_BYTES;
    unsigned char *pooled = windows + 2 * WINDOWS_BYTES;

    const int share = images_each<IMAGES>(images, WARPGROUPS * gridDim.x), stride = share * WARPGROUPS * gridDim.x;
    int first = (blockIdx.x + group * gridDim.x) * share;
    Pieces<IMAGES> pieces;  // requested before all else: over a bus they take longest
    load_pieces(pieces, x, first, min(share, images - first), own_number());
    const int rounds = (images - (int)blockIdx.x * share + stride - 1) / stride;  // rounds of the first warpgroup
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++)
            mbarrier_init(full() + stage, 1), readers()[stage] = 0;
        fence_mbarrier_init();
        for (int tap = 0; tap < STAGES; tap++)
            cp_async_bulk(memory + tap * TAP_BYTES, filters2 + tap * TAP_BYTES, TAP_BYTES, full() + tap);
    }
    griddepcontrol_launch_dependents();
    clear_padding(windows, own_number());
    clear_padding(windows + WINDOWS_BYTES, own_number());
    __syncthreads();

    Ring<STAGES> ring;
    for (int round = 0; round < rounds; round++, first += stride) {
        const bool last_round = round + 1 == rounds;
        const int count = min(share, images - first), passes = 2 * count;  // columns of missing images: never stored
        if (count <= 0) {
            skip_taps(filters2, ring, last_round);
            continue;
        }
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
            const Filters1 low = load_filters1(filters1 + 768, odd, t), high = load_filters1(filters1, odd, t);
            float upper[36] = {}, lower[36] = {};
            wgmma_fence();
            convolve1(upper, lower, low, windows + image % 2 * WINDOWS_BYTES, true);
            convolve1(upper, lower, high, windows + image % 2 * WINDOWS_BYTES, false);
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
        STAMP(LOAD);
        if (passes > 2) convolve2<IMAGES>(y + first * 1024LL, pooled, filters2, scales, ring, count, last_round);
        else convolve2<1>(y + first * 1024LL, pooled, filters2, scales, ring, count, last_round);
        STAMP(STORE);
    }
    STAMPS_END();
}
