// Shared by the kernels that compute both convolutions of lenet5: the layout of the maps between them, and the second
// pooling.
//
// An image's pooled maps are stored as [eight channels][row][column][channel]. In the warpgroup kernels the rows of a
// group's images alternate, so eight neighbouring pixels form a core matrix of wgmma wherever they start.
#pragma once
#include "half.cuh"

constexpr int ROW_BYTES = 12 * 16;                                   // a row of pooled pixels, eight channels
constexpr int PLANE_BYTES = 12 * ROW_BYTES;                          // those channels, all rows
constexpr int POOLED_IMAGE_BYTES = 4 * PLANE_BYTES;                  // 32 channels
constexpr int TAPS = 25, K_STEPS2 = 2 * TAPS;                        // the second sum in steps of 16 channels
constexpr int FILTER2_STEP_BYTES = 64 * 16 * 2;

// 2 * max(value, 0) by an addition, which has twice the throughput of a maximum; NaN stays NaN.
__device__ __forceinline__ float twice_relu(float value) { return value + fabsf(value); }

// Twice the sum over a 2 x 2 window of positive results: two neighbours in the upper row, two in the lower.
__device__ __forceinline__ float twice_pooled(float a, float b, float c, float d) {
    return (twice_relu(a) + twice_relu(b)) + (twice_relu(c) + twice_relu(d));
}

// Twice the sums of a map's positive results over the four 2 x 2 windows of one column of windows, in the second
// convolution: window column = lane % 4. Columns of the product are [row][image][column], like the pooled maps.
template <int Images>
__device__ __forceinline__ void pooled2(float (&rows)[4], const float (&sums)[32 * Images], int image, int half) {
#pragma unroll
    for (int row = 0; row < 4; row++) {
        const int upper = 4 * (2 * row * Images + image) + 2 * half, lower = upper + 4 * Images;
        rows[row] = twice_pooled(sums[upper], sums[upper + 1], sums[lower], sums[lower + 1]);
    }
}

// Transposes a 4 x 4 tile over four lanes: each lane passes column lane % 4 and gets row lane % 4.
__device__ __forceinline__ uint2 transposed(const float (&column)[4], int lane) {
    const bool low_half = lane & 2, odd = lane & 1;
    const half2 top = pack_half2(column[0], column[1]), bottom = pack_half2(column[2], column[3]);
    const half2 from_far = __shfl_xor_sync(~0u, low_half ? top : bottom, 2), kept = low_half ? bottom : top;
    const half2 left = low_half ? from_far : kept, right = low_half ? kept : from_far;  // two columns apart
    const half2 upper = __byte_perm(left, right, 0x5410), lower = __byte_perm(left, right, 0x7632);
    const half2 from_near = __shfl_xor_sync(~0u, odd ? upper : lower, 1), own = odd ? lower : upper;
    const half2 even_columns = odd ? from_near : own, odd_columns = odd ? own : from_near;
    return make_uint2(__byte_perm(even_columns, odd_columns, 0x5410), __byte_perm(even_columns, odd_columns, 0x7632));
}
