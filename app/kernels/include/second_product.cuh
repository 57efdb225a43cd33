// The second of two fully connected layers, from hidden values in shared memory, with softmax and argmax. Tensor cores
// multiply operands split into two tfloat32, as exact as float32 and with its range. A warp computes eight images.
//
// Each hidden value is a row of PITCH floats, one per image. The matrix is packed as mma_tf32's A in tiles of 16
// classes, high parts first, then low parts (gemm_pair.py).
#pragma once
#include "common.cuh"
#include "mma.cuh"

typedef Vector<unsigned, 4> Fragment;
constexpr int PITCH = ROWS + (ROWS % 16 ? 0 : 8);  // 8 or 24 more than a multiple of 32: no conflicts
constexpr int CLASS_TILES = (CLASSES + 15) / 16, K_STEPS = HIDDEN / 8;
constexpr int FRAGMENTS = CLASS_TILES * K_STEPS * 32;  // per part of the matrix
constexpr int SECOND_BYTES = 2 * FRAGMENTS * sizeof(Fragment);
typedef float Scores[CLASS_TILES][4];  // of classes lane / 4 (0, 1) and 8 more (2, 3), images 2 (lane % 4) and the next

// Splits a number into two tfloat32: the high one truncated, the low one rounded.
__device__ __forceinline__ void split_tf32(float value, unsigned &high, unsigned &low) {
    constexpr unsigned BITS = 0xffffe000;
    high = __float_as_uint(value) & BITS;
    low = (__float_as_uint(value - __uint_as_float(high)) + 0x1000) & BITS;
}

// Loads the biases of a lane's classes; zeros without a bias.
__device__ __forceinline__ void load_second_bias(float (&bias)[CLASS_TILES][2], const float *bias2, int lane) {
#pragma unroll
    for (int i = 0; i < 2 * CLASS_TILES; i++) {
        const int label = i * 8 + lane / 4;
        bias[i / 2][i % 2] = HAS_BIAS2 && label < CLASSES ? __ldg(bias2 + label) : 0.0f;
    }
}

// Computes the scores of eight images. bias: from load_second_bias.
__device__ __forceinline__ void multiply_second(Scores &scores, const float (&bias)[CLASS_TILES][2], const float *hidden,
                                                const Fragment *w2, int lane) {
    float cross[CLASS_TILES][2][4] = {};
#pragma unroll
    for (int i = 0; i < 4 * CLASS_TILES; i++) scores[i / 4][i % 4] = bias[i / 4][i % 4 / 2];
    hidden += lane % 4 * PITCH + lane / 4;
#pragma unroll 4
    for (int k = 0; k < K_STEPS; k++) {
        unsigned high[2], low[2];
        split_tf32(hidden[k * 8 * PITCH], high[0], low[0]);
        split_tf32(hidden[(k * 8 + 4) * PITCH], high[1], low[1]);
#pragma unroll
        for (int tile = 0; tile < CLASS_TILES; tile++) {
            const Fragment *own = w2 + (tile * K_STEPS + k) * 32 + lane;
            const Fragment w = own[0], low_w = own[FRAGMENTS];
            float partial[4] = {};  // short sums, because tensor cores truncate
            mma_tf32(partial, w.at, high);
            mma_tf32(cross[tile][0], low_w.at, high);
            mma_tf32(cross[tile][1], w.at, low);
#pragma unroll
            for (int i = 0; i < 4; i++) scores[tile][i] += partial[i];
        }
    }
#pragma unroll
    for (int tile = 0; tile < CLASS_TILES; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) scores[tile][i] += cross[tile][0][i] + cross[tile][1][i];
}

// The greatest score of this thread's image i (0, 1) and its class; all lanes of the image get it.
struct Best {
    float score = __int_as_float(0xff800000);
    int label = CLASSES;
    __device__ __forceinline__ void meet(float other, int its_label) {
        if (wins(other, its_label, score, label)) score = other, label = its_label;
    }
};
__device__ __forceinline__ Best best_of(const Scores &scores, int i, int lane) {
    Best best;
#pragma unroll
    for (int tile = 0; tile < CLASS_TILES; tile++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int label = tile * 16 + lane / 4 + half * 8;
            if (label < CLASSES) best.meet(scores[tile][2 * half + i], label);
        }
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
        const float other = __shfl_xor_sync(~0u, best.score, distance);
        best.meet(other, __shfl_xor_sync(~0u, best.label, distance));
    }
    return best;
}

// Replaces the scores of image i by their softmax.
__device__ __forceinline__ void to_probabilities(Scores &scores, int i, int lane) {
    const float greatest = best_of(scores, i, lane).score;
    float sum = 0.0f;
#pragma unroll
    for (int tile = 0; tile < CLASS_TILES; tile++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float &score = scores[tile][2 * half + i];
            score = tile * 16 + lane / 4 + half * 8 < CLASSES ? expf(score - greatest) : 0.0f;
            sum += score;
        }
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
#pragma unroll
    for (int tile = 0; tile < CLASS_TILES; tile++) scores[tile][i] /= sum, scores[tile][2 + i] /= sum;
}

// Stores the scores, or probabilities, and labels of the images that exist. One store has the labels of two images, so
// a warp writes eight bytes together: over a bus, each byte would be a separate write. labels: an even address.
__device__ __forceinline__ void store_results(Scores &scores, float *y, unsigned char *labels, int images, int lane) {
    const int first = lane % 4 * 2;
    int best[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (SOFTMAX) to_probabilities(scores, i, lane);
        best[i] = best_of(scores, i, lane).label;
        if (first + i >= images) continue;
#pragma unroll
        for (int tile = 0; tile < CLASS_TILES; tile++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int label = tile * 16 + lane / 4 + half * 8;
                if (label < CLASSES) y[(first + i) * CLASSES + label] = scores[tile][2 * half + i];
            }
    }
    if (lane >= 4) return;
    if (first + 1 < images) *(unsigned short *)(labels + first) = (unsigned short)(best[0] | best[1] << 8);
    else if (first < images) labels[first] = (unsigned char)best[0];
}
