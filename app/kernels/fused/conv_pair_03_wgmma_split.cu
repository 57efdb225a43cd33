// Both convolutions of lenet5 as in step 2, as exact as float32: step 3, split operands.
//
// What changed since step 2: an activation and a filter are each the sum of two float16, high and low, and a product is
// high x high + high x low + low x high; the pixels, 0 to 255, are float16 already. The second convolution's filters
// take twice the memory and no longer fit beside the pooled maps, so they stream through a ring, tap by tap. The tensor
// cores truncate, which matters in long sums: they sum each tap, and ordinary additions sum the taps.
// From: none of the systems.
// Data: x (images, 28, 28) uint8; filters1, filters2 packed (see conv_pair.py) float16; scales (2);
//       y (images, 64, 4, 4) float32.
// Launch: one block per SM, three warpgroups that each walk over pairs of images.
// Bound by: the tensor cores, and the issue slots that pooling and adding take from them.
#include "conv_pair_split.cuh"

constexpr int TAP_BYTES = 4 * FILTER2_STEP_BYTES;  // high and low, two steps of 16 channels
constexpr int STAGES = 12;                         // taps in the ring

struct SharedStorage : PairStorage<STAGES * TAP_BYTES, 2 * PART_BYTES, WARPGROUPS> {
    unsigned long long full[STAGES];  // barriers
    unsigned readers[STAGES];         // warps that are done with a tap
};

struct Policy {
    typedef ::SharedStorage SharedStorage;
    typedef SplitMaps<2> First;
    static constexpr bool STREAMED = true;
    const unsigned char *filters2;
    const float *scales;
    PipelineState<STAGES> pipe;
    bool last_round;

    static __device__ __forceinline__ SharedStorage &smem() { return shared_storage<SharedStorage>(); }

    // Called before the block's first barrier: starts the first copies.
    static __device__ __forceinline__ void begin(const unsigned char *filters2, const float *) {
        if (threadIdx.x > 0) return;
        for (int stage = 0; stage < STAGES; stage++)
            mbarrier_init(smem().full + stage, 1), smem().readers[stage] = 0;
        fence_mbarrier_init();
        for (int tap = 0; tap < STAGES; tap++)
            cp_async_bulk(smem().filters2 + tap * TAP_BYTES, filters2 + tap * TAP_BYTES, TAP_BYTES, smem().full + tap);
    }
    static __device__ __forceinline__ void wait() {}  // for each tap instead

    // Called when this warp has read a tap. The last warp copies the tap that replaces it, except in the last round.
    __device__ __forceinline__ void release_tap(int number) {
        if (thread_in_warpgroup() % 32 == 0 && arrives_last(smem().readers + pipe.stage, THREADS / 32) &&
            (!last_round || number + STAGES < TAPS))
            cp_async_bulk(smem().filters2 + pipe.stage * TAP_BYTES, filters2 + (number + STAGES) % TAPS * TAP_BYTES,
                          TAP_BYTES, smem().full + pipe.stage);
        pipe.advance();
    }

    // A warpgroup without images releases all taps of a round unread.
    __device__ __forceinline__ void skip_taps() {
        for (int number = 0; number < TAPS; number++) {
            mbarrier_wait(smem().full + pipe.stage, pipe.phase);
            release_tap(number);
        }
    }

    // The second convolution with ReLU and pooling, of a full group of images or of a single image.
    template <int Columns>
    __device__ __forceinline__ void convolve2(float *y, const unsigned char *pooled, int count) {
        const unsigned long long filter = make_smem_desc(shared_address(smem().filters2), 1024, 128);
        const unsigned long long pixels = pixels_desc<Columns, IMAGES>(pooled);
        float total[32 * Columns] = {};
#pragma unroll 1  // if unrolled, the assembler (12.9, 13.2) confuses two taps' sums
        for (int number = 0; number < TAPS; number++) {
            mbarrier_wait(smem().full + pipe.stage, pipe.phase);
            const unsigned long long tap = advance_desc(filter, pipe.stage * TAP_BYTES);
            const unsigned long long high = advance_desc(pixels, tap_offset<IMAGES>(number));
            const unsigned long long low = advance_desc(high, PART_BYTES);
            float sums[32 * Columns] = {};
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
            release_tap(number);
#pragma unroll
            for (int i = 0; i < 32 * Columns; i++) total[i] += sums[i];
        }
        store_features<Columns>(y, total, scales, count);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_pair_wgmma_split(const unsigned char *__restrict__ x, const uint4 *__restrict__ filters1,
                          const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                          float *__restrict__ y, int images) {
    convolve_pair<IMAGES, WARPGROUPS>(Policy{filters2, scales}, x, filters1,
                                      filters2, scales, y, images);
}
