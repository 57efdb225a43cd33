// Resizes images of bytes by bilinear interpolation, in the exact integer arithmetic of app/layers/resize.py: the same
// bits as the NumPy reference. A thread computes four neighbouring outputs and stores them at once.
//
// From: fa19, k7, minidnn86 (which read images that had been enlarged beforehand).
// Data: x (maps, H, W), maps = images * CHANNELS, y (maps, SIZE, SIZE), both bytes. Four outputs are neighbours in
//       memory, whatever their rows; where maps do not begin at multiples of four bytes, each is stored by itself.
//       COURSE: pixels beyond the image are 0 and means are cut; otherwise the border is repeated and means rounded.
// Launch: PARTS blocks of THREADS for each map; their threads go over the map's groups of four.
// Bound by: integer arithmetic; a map is read several times, but from the caches.
#include "common.cuh"

constexpr int EACH = 4, AREA = SIZE * SIZE, GROUPS = (AREA + EACH - 1) / EACH;
constexpr unsigned UNIT = 2 * SIZE;  // the weights of two neighbours add up to it

struct Neighbours {
    int low, high;   // two pixels of an axis; with COURSE, one of them may lie beyond the image
    unsigned far;    // weight of the second pixel
};

template <int Length>
__device__ __forceinline__ Neighbours around(int output) {
    if (COURSE) {
        const unsigned at = (2 * output + 1) * Length + SIZE;  // from one pixel before the image: not negative
        const int low = int(at / UNIT) - 1;
        return {low, low + 1, at % UNIT};
    }
    const unsigned at = min(max((2 * output + 1) * Length - SIZE, 0), (Length - 1) * int(UNIT));
    const int low = at / UNIT;
    return {low, min(low + 1, Length - 1), at - low * UNIT};
}

__device__ __forceinline__ bool beyond(int place, int length) { return COURSE && unsigned(place) >= unsigned(length); }

__device__ __forceinline__ unsigned pixel(const uint8 *row, int column) { return beyond(column, W) ? 0 : row[column]; }

__device__ __forceinline__ unsigned between(const uint8 *map, int row, Neighbours columns) {
    if (beyond(row, H)) return 0;
    const uint8 *pixels = map + row * W;
    return pixel(pixels, columns.low) * (UNIT - columns.far) + pixel(pixels, columns.high) * columns.far;
}

__device__ __forceinline__ unsigned output(const uint8 *map, int at) {
    const Neighbours rows = around<H>(at / SIZE), columns = around<W>(at % SIZE);
    const unsigned upper = between(map, rows.low, columns), lower = between(map, rows.high, columns);
    return (upper * (UNIT - rows.far) + lower * rows.far + (COURSE ? 0 : UNIT * UNIT / 2)) / (UNIT * UNIT);
}

extern "C" __global__ void resize_bilinear(const uint8 *__restrict__ x, uint8 *__restrict__ y, int images) {
    const long long index = blockIdx.x / PARTS;
    const uint8 *map = x + index * (H * W);
    uint8 *result = y + index * AREA;
    for (int group = blockIdx.x % PARTS * THREADS + threadIdx.x; group < GROUPS; group += PARTS * THREADS) {
        const int first = group * EACH;
        if (AREA % EACH == 0) {
            unsigned word = 0;
#pragma unroll
            for (int i = 0; i < EACH; i++) word |= output(map, first + i) << (8 * i);
            *reinterpret_cast<unsigned *>(result + first) = word;
        } else {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (first + i < AREA) result[first + i] = output(map, first + i);
        }
    }
}
