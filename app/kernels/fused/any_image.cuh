// Stages an image of bytes, enlarged if the network enlarges it, as pairs of neighbouring pixels in shared memory,
// which the first convolution of any_convolution.cuh reads.
#pragma once
#include "any_convolution.cuh"

// A pixel of the enlarged image, in exact integers as in resize_01; without enlargement a pixel of the image.
constexpr unsigned UNIT = 2 * H1;  // the weights of two neighbours add up to it
struct Neighbours {
    int low, high;  // two pixels of an axis; with COURSE, one of them may lie beyond the image
    unsigned near, far;
};
template <int Length>
__device__ __forceinline__ Neighbours around(int output) {
    if (COURSE) {
        const unsigned at = (2 * output + 1) * Length + H1;  // counted from one pixel before the image, so not negative
        const int low = int(at / UNIT) - 1;
        const unsigned far = at % UNIT;
        // A pixel beyond the image is zero, so its weight may be zero.
        return {max(low, 0), min(low + 1, Length - 1), low < 0 ? 0 : UNIT - far, low + 1 < Length ? far : 0};
    }
    const unsigned at = min(max((2 * output + 1) * Length - H1, 0), (Length - 1) * int(UNIT));
    const int low = at / UNIT;
    const unsigned far = at - low * UNIT;
    return {low, min(low + 1, Length - 1), UNIT - far, far};
}

// Interpolates along the rows, to 16-bit numbers. By Threads threads, of which this is number ``thread``.
template <int Threads>
__device__ __forceinline__ void widen(unsigned short *wide, const unsigned char *image, int thread) {
    for (int i = thread; i < C1 * H0 * W1; i += Threads) {
        const Neighbours at = around<W0>(i % W1);
        const unsigned char *row = image + i / W1 * W0;
        wide[i] = row[at.low] * at.near + row[at.high] * at.far;
    }
}
__device__ __forceinline__ unsigned pixel(const unsigned short *wide, int row, int column) {
    const Neighbours at = around<H0>(row);
    const unsigned sum = wide[at.low * W1 + column] * at.near + wide[at.high * W1 + column] * at.far;
    return (sum + (COURSE ? 0 : UNIT * UNIT / 2)) / (UNIT * UNIT);
}

// Writes pixel i: the low half of its pair and the high half of the pair before. wide: the interpolated rows, if the
// image is enlarged.
__device__ __forceinline__ void stage_pixel(half2 *pairs, const unsigned char *image, const unsigned short *wide, int i) {
    const int channel = i / (H1 * W1), row = i / W1 % H1, column = i % W1;
    const unsigned value8 = RESIZED ? pixel(wide + channel * (H0 * W1), row, column) : image[i];
    const float16 value = float16(float(value8));
    float16 *at = (float16 *)(pairs + channel * PAIR_PLANE + (row + P1) * PAIR_PITCH + column + P1);
    at[0] = value;
    if (channel + row + column + P1 > 0) at[-1] = value;
}

// Writes an image's pixels, or those of some rows, by the same threads.
template <int Threads>
__device__ __forceinline__ void stage_pixels(half2 *pairs, const unsigned char *image, const unsigned short *wide,
                                             int thread) {
    for (int i = thread; i < C1 * H1 * W1; i += Threads) stage_pixel(pairs, image, wide, i);
}
template <int Threads>
__device__ __forceinline__ void stage_rows(half2 *pairs, const unsigned char *image, const unsigned short *wide, int thread,
                                           int begin, int end) {
    for (int channel = 0; channel < C1; channel++)
        for (int i = begin * W1 + thread; i < end * W1; i += Threads)
            stage_pixel(pairs, image, wide, channel * (H1 * W1) + i);
}
