// The second of two fully connected layers, from hidden values in shared memory, and its argmax: by tensor cores, each
// operand the sum of two tfloat32, which is as exact as float32 and has its range. A warp serves eight images.
//
// Hidden values, none below zero, lie in rows of PITCH, a column an image. The matrix is packed as mma_tf32's A, high
// parts and then low parts (gemm_pair.py).
#pragma once
#include "common.cuh"
#include "mma.cuh"

typedef Vector<unsigned, 4> Fragment;
constexpr int PITCH = ROWS + (ROWS % 16 ? 0 : 8);  // 8 or 24 more than a multiple of 32: no conflicts
constexpr int FRAGMENTS = HIDDEN / 8 * 32;         // per part of the matrix
constexpr int SECOND_BYTES = 2 * FRAGMENTS * sizeof(Fragment);
static_assert(CLASSES <= 16, "the row must refuse more: classes are the rows of a product");

// A number that is not negative as the sum of two tfloat32: the high one cut off, the low one rounded.
__device__ __forceinline__ void split_tf32(float value, unsigned &high, unsigned &low) {
    constexpr unsigned BITS = 0xffffe000;
    high = __float_as_uint(value) & BITS;
    low = (__float_as_uint(value - __uint_as_float(high)) + 0x1000) & BITS;
}

// The second product for eight images: classes lane / 4 (scores 0, 1) and 8 more (2, 3), images 2 (lane % 4) and the next.
__device__ __forceinline__ void multiply_second(float (&scores)[4], const float *bias2, const float *hidden,
                                                const Fragment *w2, int lane) {
    float cross[2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int label = lane / 4 + i / 2 * 8;
        scores[i] = HAS_BIAS2 && label < CLASSES ? __ldg(bias2 + label) : 0.0f;
    }
    hidden += lane % 4 * PITCH + lane / 4;
#pragma unroll 4
    for (int k = 0; k < HIDDEN / 8; k++) {
        const Fragment w = w2[k * 32 + lane], low_w = w2[FRAGMENTS + k * 32 + lane];
        unsigned high[2], low[2];
        split_tf32(hidden[k * 8 * PITCH], high[0], low[0]);
        split_tf32(hidden[(k * 8 + 4) * PITCH], high[1], low[1]);
        float partial[4] = {};  // tensor cores cut off what they add
        mma_tf32(partial, w.at, high);
        mma_tf32(cross[0], low_w.at, high);
        mma_tf32(cross[1], w.at, low);
#pragma unroll
        for (int i = 0; i < 4; i++) scores[i] += partial[i];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) scores[i] += cross[0][i] + cross[1][i];
}

// Stores the scores and the best class of each image that exists.
__device__ __forceinline__ void store_results(const float (&scores)[4], float *y, unsigned char *labels, int images,
                                              int lane) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int image = lane % 4 * 2 + i, low = lane / 4, high = low + 8;
        float best = scores[i];
        int label = low;
        if (image < images && low < CLASSES) y[image * CLASSES + low] = best;
        if (image < images && high < CLASSES) y[image * CLASSES + high] = scores[2 + i];
        if (low >= CLASSES) best = __int_as_float(0xff800000), label = CLASSES;
        if (high < CLASSES && wins(scores[2 + i], high, best, label)) best = scores[2 + i], label = high;
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
            const float other = __shfl_xor_sync(~0u, best, distance);
            const int its_label = __shfl_xor_sync(~0u, label, distance);
            if (wins(other, its_label, best, label)) best = other, label = its_label;
        }
        if (image < images && lane < 4) labels[image] = (unsigned char)label;
    }
}
