// Both convolutions of lenet5 as in step 2, the second of 8-bit integers: step 5, half the tensor-core time.
//
// What changed since step 2: pooled maps are bytes, 0 to 255 steps of one size, and the second filters signed bytes with
// a factor for each map. Their products are exact, so all taps add up in one sum of integers. 16 channels lie where 8
// float16 did: a filter tap is another start address as before, and one product covers all 32 channels.
// The first convolution's filters include the step: a sum of four results is 1 where bytes end, and saturates there.
// From: none of the systems.
// Data: x (images, 28, 28) uint8; filters1 packed float16, filters2 packed int8 (see conv_pair.py);
//       scales (64), a map's factor from sums to features; y (images, 64, 4, 4) float16.
// Launch: one block per SM, warpgroups that each walk over groups of images on their own: while one pools in registers,
//         the others keep the tensor cores busy. Few images are spread over all SMs, one a group.
// Bound by: the issue slots that pooling takes, then the tensor cores; images in host memory: the bus.
#include "bulk_copy.cuh"
#include "conv_pair.cuh"
#include "dependent_launch.cuh"
#include "stamps.cuh"

constexpr int THREADS = 128 * WARPGROUPS;
constexpr int TAPS = 25, FILTERS2_BYTES = TAPS * 64 * 32;
constexpr int POOLED_BYTES = IMAGES * 2 * PLANE_BYTES;       // two planes of 16 channels an image
constexpr int OWN_BYTES = POOLED_BYTES + 2 * WINDOWS_BYTES;  // per warpgroup
static_assert(FILTERS2_BYTES + WARPGROUPS * OWN_BYTES + 8 == SHARED_BYTES, "the row must lay memory out alike");

extern __shared__ __align__(128) unsigned char memory[];  // the second convolution's filters come first

// Sums of four positive results, 1 or more of which is 255, as bytes: 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ half2 to_bytes(half2 a, half2 b) {
    half2 sum;
    asm("add.rn.sat.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return fused_multiply_add(sum, 0x5bf85bf8, 0x64006400);
}

// The sum over a 2 x 2 window of positive results.
__device__ __forceinline__ int pooled_window(int a, int b, int c, int d) {
    int sum = max(a, 0);
    sum = max(sum + b, sum);  // one instruction
    sum = max(sum + c, sum);
    return max(sum + d, sum);
}

// Where a warpgroup's memory starts: its windows, then its pooled maps. Windows first: compute-sanitizer takes the
// overlapping pieces that are read of them for a longer one.
__device__ __forceinline__ unsigned char *own_memory(int group) { return memory + FILTERS2_BYTES + group * OWN_BYTES; }

// The second convolution of a group, or of the one image that it has, with ReLU and pooling.
template <int Images>
__device__ __forceinline__ void convolve2(float16 *y, const float *scales, int count) {
    // Asked for anew: else the taps' addresses are computed once, for the whole walk, and there are no registers for them.
    const unsigned char *pooled = own_memory(warpgroup_number()) + 2 * WINDOWS_BYTES;
    const unsigned long long filter = make_smem_desc(shared_address(memory), 1024, 128);
    const unsigned long long pixels =
        make_smem_desc(shared_address(pooled), PLANE_BYTES * IMAGES, ROW_BYTES * IMAGES / Images);
    int sums[32 * Images] = {};
    wgmma_fence();
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
        wgmma_s8_u8(sums, advance_desc(filter, tap * 64 * 32),
                    advance_desc(pixels, tap / 5 * IMAGES * ROW_BYTES + tap % 5 * 16), tap == 0);
    wgmma_commit_group();
    const int number = own_number(), lane = number % 32, map = number / 32 * 16 + lane / 4;
    const float factors[2] = {__ldg(scales + map), __ldg(scales + map + 8)};
    wgmma_wait_group(sums);
    STAMP(CONV2);
#pragma unroll
    for (int image = 0; image < Images; image++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float column[4];
#pragma unroll
            for (int row = 0; row < 4; row++) {  // as pooled2
                const int upper = 4 * (2 * row * Images + image) + 2 * half, lower = upper + 4 * Images;
                column[row] =
                    factors[half] * pooled_window(sums[upper], sums[upper + 1], sums[lower], sums[lower + 1]);
            }
            const uint2 row = transposed(column, lane);
            if (image < count) *(uint2 *)(y + image * 1024 + (map + 8 * half) * 16 + lane % 4 * 4) = row;
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_pair_wgmma_int8(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                         const signed char *__restrict__ filters2, const float *__restrict__ scales,
                         float16 *__restrict__ y, int images) {
    STAMPS_BEGIN();
    const int group = warpgroup_number();
    unsigned char *windows = own_memory(group), *pooled = windows + 2 * WINDOWS_BYTES;

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
        const int t = own_number();
        const Places1 places = places1<1>(IMAGES * ROW_BYTES, t);
        Filters1 filters = load_filters1(filters1, 0, t);
        unsigned even[5];  // bytes of even maps, of two j each
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
                own[j] = to_bytes(add(relu(upper[2 * j]), relu(upper[2 * j + 1])),
                                  add(relu(lower[2 * j]), relu(lower[2 * j + 1])));
            if (odd) {
#pragma unroll
                for (int j = 0; j < 9; j++) {
                    unsigned char *place = pooled + image * ROW_BYTES + places.at[j % 3] + j / 3 * (4 * IMAGES * ROW_BYTES);
                    const int first_byte = 2 * (j % 2);
                    *(unsigned short *)place = (unsigned short)__byte_perm(even[j / 2], own[j], 0x40 + first_byte);
                    *(unsigned short *)(place + 32) = (unsigned short)__byte_perm(even[j / 2], own[j], 0x61 + first_byte);
                }
                fence_proxy_async();
                warpgroup_barrier(1 + group);
            } else {
#pragma unroll
                for (int i = 0; i < 5; i++) even[i] = __byte_perm(own[2 * i], own[min(2 * i + 1, 8)], 0x6420);
            }
            STAMP(POOL);
        }

        // The next group's images, after the last fence and before the long products.
        wait_for(filters);
        load_pieces(pieces, x, first + stride, min(share, images - first - stride), t);
        mbarrier_wait(filters_there, 0);
        STAMP(LOAD);
        if (passes > 2) convolve2<IMAGES>(y + first * 1024LL, scales, count);
        else convolve2<1>(y + first * 1024LL, scales, count);
        STAMP(STORE);
    }
    STAMPS_END();
}
