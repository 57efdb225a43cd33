// Two convolutions of any sizes, each with bias, activation and pooling, in one kernel for all networks. Enlarged
// images, sums before pooling and the maps between the convolutions never reach device memory.
//
// A block computes an image. The 16 rows of an mma may be any 16 pixels: they are chosen such that one thread has all
// pixels of a pooling window, which it pools in registers. The columns are maps. k runs along a row of the window: over
// eight neighbouring pixels of a channel in the first convolution, over all maps of neighbouring pixels, in memory
// order, in the second. In float16x2 activations are the sum of two float16 (PARTS), and so are weights that are not
// exact in float16 (WEIGHT_PARTS); sums of a row of the window, or of eight steps, are added by ordinary additions,
// because tensor cores truncate.
// From: fa19, k7, minidnn86, whose own kernels took one layer each.
// Data: x (images, C1, H0, W0) uint8; filters1, filters2 packed (see any_pair.py) float16; factors1 (M1) from sums to
//       values, with SCALED1 then (M1) for values; factors2 (M2); bias1 (M1), bias2 (M2) or null; all vectors padded to
//       even lengths; y (images, M2, PH2, PW2).
//       RESIZED: images are enlarged to H1 x W1 first, as resize_01 does it; COURSE: by the course's rule.
// Launch: a block for each image; BLOCKS of them share an SM, one stages its image while another multiplies. Of few images
//         conv_pair_mma_any_few has BANDS blocks, blockIdx.y, for each: a block computes some rows of the results, and
//         of the first convolution what these read. The sums are the same.
// Bound by: reading pixels from shared memory, and issue slots.
#include "any_image.cuh"
#include "shared_storage.cuh"

constexpr int WARPS = THREADS / 32;

__device__ __forceinline__ void copy(void *to, const void *from, int words) {  // of 16 bytes
    for (int i = threadIdx.x; i < words; i += THREADS) ((uint4 *)to)[i] = __ldg((const uint4 *)from + i);
}

constexpr int MAPS_SIZE = (MAPS_WORDS + 3) / 4 * 4;
static_assert(MAPS_WORDS >= MAP_END + 8, "steps may end beyond the last row");

// All members are copied or cleared 16 bytes at a time.
struct SharedStorage {
    half2 pairs[(PAIRS + 3) / 4 * 4];
    half2 maps[PARTS * MAPS_SIZE];  // high parts, low parts
    uint2 filters1[WEIGHT_PARTS * FILTERS1], filters2[WEIGHT_PARTS * FILTERS2];
    unsigned char bytes[(C1 * H0 * W0 + 15) / 16 * 16];
};
__device__ __forceinline__ half2 *pairs() { return shared_storage<SharedStorage>().pairs; }
__device__ __forceinline__ half2 *maps() { return shared_storage<SharedStorage>().maps; }
__device__ __forceinline__ uint2 *filters_1() { return shared_storage<SharedStorage>().filters1; }
__device__ __forceinline__ uint2 *filters_2() { return shared_storage<SharedStorage>().filters2; }
__device__ __forceinline__ unsigned char *bytes() { return shared_storage<SharedStorage>().bytes; }

// The part of an image that a block computes.
struct Band {
    Groups second, first;
    int begin_row, end_row;  // of pixels that the first convolution reads

    __device__ __forceinline__ explicit Band(int number) {
        typedef Shape<First> One;
        typedef Shape<Second> Two;
        constexpr int UNITS = ceil_div(Two::GROUPS, Two::GT);
        second = {number * UNITS / BANDS * Two::GT, (number + 1) * UNITS / BANDS * Two::GT};
        // Rows of the maps without their border.
        const int last_value = min(second.end * Two::VALUES, PH2 * PW2) - 1;
        const int begin = second.begin * Two::VALUES / PW2 * (POOL2 * S2) - P2;
        const int end = (last_value / PW2 * POOL2 + POOL2 - 1) * S2 + K2 - P2;
        first = {max(begin, 0) * PW1 / (One::VALUES * One::GT) * One::GT,
                 ceil_div(min(end, PH1) * PW1, One::VALUES * One::GT) * One::GT};
        const int last = min(first.end * One::VALUES, PH1 * PW1) - 1;
        begin_row = max(first.begin * One::VALUES / PW1 * (POOL1 * S1) - P1, 0);
        // Windows of eight pixels may end in later rows, also of the next channel; zero filters multiply those pixels.
        end_row = min((last / PW1 * POOL1 + POOL1 - 1) * S1 + K1 - P1 + 1 + 8 / PAIR_PITCH, H1);
    }
};

template <bool Few>
__device__ __forceinline__ void convolve_both(const unsigned char *__restrict__ x, const uint2 *__restrict__ filters1,
                                              const float *__restrict__ factors1, const float *__restrict__ bias1,
                                              const uint2 *__restrict__ filters2, const float *__restrict__ factors2,
                                              const float *__restrict__ bias2, OUTPUT *__restrict__ y, int images) {
    const Band band(Few ? blockIdx.y : 0);
    if (Few && band.second.begin == band.second.end) return;
    copy(filters_1(), filters1, WEIGHT_PARTS * FILTERS1 / 2);
    copy(filters_2(), filters2, WEIGHT_PARTS * FILTERS2 / 2);
    for (int i = threadIdx.x; i < PAIRS; i += THREADS)
        if (P1 > 0 || (Few && C1 > 1) || i >= PAIRS - 9) pairs()[i] = 0;
    for (int image = blockIdx.x; image < images; image += gridDim.x) {
        constexpr int BYTES = C1 * H0 * W0;
        const unsigned char *source = x + (long long)image * BYTES;
        if (BYTES % 16 == 0) copy(bytes(), source, BYTES / 16);
        else
            for (int i = threadIdx.x; i < BYTES; i += THREADS) bytes()[i] = __ldg(source + i);
        __syncthreads();
        unsigned short *wide = (unsigned short *)maps();  // the maps' memory is free until the first convolution
        if (RESIZED) {
            static_assert(!RESIZED || C1 * H0 * W1 <= 2 * MAPS_WORDS, "the maps' place must hold the widened rows");
            widen<THREADS>(wide, bytes(), threadIdx.x);
            __syncthreads();
        }
        if (Few) stage_rows<THREADS>(pairs(), bytes(), wide, threadIdx.x, band.begin_row, band.end_row);
        else stage_pixels<THREADS>(pairs(), bytes(), wide, threadIdx.x);
        __syncthreads();
        if (P2 > 0) {
            for (int i = threadIdx.x; i < PARTS * MAPS_SIZE; i += THREADS) maps()[i] = 0;
            __syncthreads();
        } else {  // steps of k may end beyond the last row
            const int values = Few ? min(band.first.end * Shape<First>::VALUES, PH1 * PW1) : PH1 * PW1;
            const int end = Few ? values / PW1 * MAP_PITCH + values % PW1 * PIXEL_WORDS : MAP_END;
            if (threadIdx.x < 8 * PARTS) maps()[threadIdx.x / 8 * MAPS_SIZE + end + threadIdx.x % 8] = 0;
        }
        half2 *results = maps();
        const auto to_maps = [=](int value, int map, float a, float b) {
            half2 *at = results + (value / PW1 + P2) * MAP_PITCH + (value % PW1 + P2) * PIXEL_WORDS + map / 2;
            const half2 high = pack_half2(a, b);
            *at = high;
            if (PARTS == 2)
                at[MAPS_SIZE] = pack_half2(a - float(low_half(high)), b - float(high_half(high)));
        };
        convolve<First, WARPS>(threadIdx.x / 32, pairs(), nullptr, filters_1(), factors1, bias1, to_maps,
                               Few ? band.first : Groups{0, Shape<First>::GROUPS});
        __syncthreads();
        OUTPUT *own = y + (long long)image * (M2 * PH2 * PW2);
        const auto to_memory = [=](int value, int map, float a, float b) {
            own[map * (PH2 * PW2) + value] = OUTPUT(a);
            if (map + 1 < M2) own[(map + 1) * (PH2 * PW2) + value] = OUTPUT(b);
        };
        convolve<Second, WARPS>(threadIdx.x / 32, maps(), maps() + MAPS_SIZE, filters_2(), factors2, bias2, to_memory,
                                Few ? band.second : Groups{0, Shape<Second>::GROUPS});
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv_pair_mma_any(const unsigned char *__restrict__ x, const uint2 *__restrict__ filters1,
                      const float *__restrict__ factors1, const float *__restrict__ bias1,
                      const uint2 *__restrict__ filters2, const float *__restrict__ factors2,
                      const float *__restrict__ bias2, OUTPUT *__restrict__ y, int images) {
    convolve_both<false>(x, filters1, factors1, bias1, filters2, factors2, bias2, y, images);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    conv_pair_mma_any_few(const unsigned char *__restrict__ x, const uint2 *__restrict__ filters1,
                          const float *__restrict__ factors1, const float *__restrict__ bias1,
                          const uint2 *__restrict__ filters2, const float *__restrict__ factors2,
                          const float *__restrict__ bias2, OUTPUT *__restrict__ y, int images) {
    convolve_both<true>(x, filters1, factors1, bias1, filters2, factors2, bias2, y, images);
}
