// A convolution of maps in shared memory by warpgroup tensor-core instructions, with bias, activation and pooling.
//
// A tile of the product is 64 maps of the result x ROWS rows of eight neighbouring pixels. Operands are read in place:
// the filters as core matrices, the pixels as [eight channels][row][column][channel], so that eight neighbours are a
// core matrix wherever they start, and a tap is another start address. Columns that a stride skips are stored
// separately. A thread has all pixels of a 2 x 2 pooling window. With PARTS 2 a channel is the sum of two float16. The
// tensor cores, which truncate, sum the products of a stage's steps; ordinary additions sum the stages.
//
// With SPARSE, filters are 2:4 sparse along the channels (sparse_pair.py). The pixels are then stored as [row][eight
// channels][column][channel], so the channels of all rows of a column of taps are core matrices at equal distances.
// Four of them are a step, whichever taps they belong to.
//
// The including file defines WARPGROUPS, ROWS, CHUNKS (tiles per band), PARTS, WEIGHT_PARTS, SPARSE, STAGES,
// STAGE_STEPS, STREAMED, STAGED, MAPS_BYTES (of a part of the maps), OUTPUT, and the struct Layer with CHANNELS,
// STAGED_HEIGHT and STAGED_WIDTH (of the maps in shared memory, with borders), MAPS, KERNEL, STRIDE, HEIGHT and WIDTH
// (of the result), POOLED_HEIGHT and POOLED_WIDTH, WINDOW, IS_MAX, WITH_BIAS, Activation. Its SharedStorage begins with
// FilterStorage.
#pragma once
#include "bulk_copy.cuh"
#include "common.cuh"
#include "shared_storage.cuh"
#include "wgmma.cuh"

constexpr int THREADS = 128 * WARPGROUPS, TILE_MAPS = 64;

// The maps: PLANES planes of eight channels; missing channels are zeros. Tiles may read beyond the last plane.
constexpr int PLANES = SPARSE ? (Layer::CHANNELS + 7) / 8 : (Layer::CHANNELS + 15) / 16 * 2;
constexpr int PHASE_BYTES = (Layer::STAGED_WIDTH + Layer::STRIDE - 1) / Layer::STRIDE * 16;
constexpr int LINE_BYTES = Layer::STRIDE * PHASE_BYTES;  // of a row of a plane
constexpr int ROW_BYTES = SPARSE ? PLANES * LINE_BYTES : LINE_BYTES;
constexpr int PLANE_BYTES = SPARSE ? LINE_BYTES : Layer::STAGED_HEIGHT * LINE_BYTES;

// A step multiplies STEP_PLANES planes. The steps of a tap, or if sparse of a column of taps, are contiguous.
constexpr int TAPS = Layer::KERNEL * Layer::KERNEL, STEP_PLANES = SPARSE ? 4 : 2;
constexpr int RUNS = SPARSE ? Layer::KERNEL : TAPS;
constexpr int RUN_STEPS = ((SPARSE ? Layer::KERNEL : 1) * PLANES + STEP_PLANES - 1) / STEP_PLANES, STEPS = RUNS * RUN_STEPS;

// Tiles cover only the columns that pooling reads.
constexpr int USED_COLUMNS = Layer::WIDTH < Layer::POOLED_WIDTH * Layer::WINDOW ? Layer::WIDTH : Layer::POOLED_WIDTH * Layer::WINDOW;
constexpr int STRIPS = (USED_COLUMNS + 7) / 8, MAP_TILES = (Layer::MAPS + TILE_MAPS - 1) / TILE_MAPS;
constexpr int PIXEL_TILES = CHUNKS * STRIPS;
constexpr int LAST_ROW = (CHUNKS * ROWS - 1) * Layer::STRIDE + (SPARSE ? 0 : Layer::KERNEL - 1);
constexpr int LAST_PLANE = SPARSE ? RUN_STEPS * STEP_PLANES - 1 : PLANES - 1;
constexpr int LAST_COLUMN = STRIPS * 8 - 1 + (Layer::KERNEL - 1) / Layer::STRIDE;
static_assert(LAST_PLANE * PLANE_BYTES + LAST_ROW * ROW_BYTES + (Layer::STRIDE - 1) * PHASE_BYTES + LAST_COLUMN * 16 + 16 <=
                  MAPS_BYTES, "a tile ends beyond the maps");
static_assert(Layer::WINDOW <= 2 && ROWS % Layer::WINDOW == 0, "a thread has whole windows");

// The filters of a tile of maps: stages of STAGE_STEPS steps, high parts before low parts. Sparse filters are followed
// by their metadata, one word per thread for two steps.
constexpr int STEP_BYTES = TILE_MAPS * 16 * 2, WORDS = SPARSE ? (STAGE_STEPS + 1) / 2 : 0, WORD_BYTES = 128 * 4;
constexpr int STAGE_BYTES = WEIGHT_PARTS * STAGE_STEPS * STEP_BYTES + WORDS * WORD_BYTES, TILE_STAGES = STEPS / STAGE_STEPS;
constexpr int ROUND_STAGES = MAP_TILES * PIXEL_TILES * TILE_STAGES;  // stages that a warpgroup reads for its maps
static_assert(STEPS % STAGE_STEPS == 0 && (!SPARSE || WEIGHT_PARTS == 1), "stages are whole");
constexpr bool WHOLE_RUNS = STAGE_STEPS % RUN_STEPS == 0;
static_assert(WHOLE_RUNS || (SPARSE && RUN_STEPS % STAGE_STEPS == 0), "a stage is of whole runs, or part of one");

struct alignas(16) FilterStorage {
    unsigned char filters[STREAMED ? STAGES * STAGE_BYTES : MAP_TILES * TILE_STAGES * STAGE_BYTES];
    float factors[MAP_TILES * TILE_MAPS], bias[MAP_TILES * TILE_MAPS];
    unsigned long long full[STAGES];  // barriers
    unsigned readers[STAGES];         // warps that are done with a stage
};
__device__ __forceinline__ FilterStorage &filter_storage() { return *(FilterStorage *)memory; }

// The filters in shared memory: all at once, or streamed stage by stage, the same stages in each round.
struct Filters {
    const unsigned char *filters;
    PipelineState<STAGES> pipe;
    int number;  // the stage's number in its round
    bool last_round;

    // Called before the block's first barrier: initialises barriers and starts copies.
    __device__ __forceinline__ void begin(const float *factors, const float *bias) {
        FilterStorage &smem = filter_storage();
        for (int i = threadIdx.x; i < MAP_TILES * TILE_MAPS; i += THREADS)
            smem.factors[i] = __ldg(factors + i), smem.bias[i] = Layer::WITH_BIAS ? __ldg(bias + i) : 0.0f;
        if (threadIdx.x > 0) return;
        for (int stage = 0; stage < STAGES; stage++) mbarrier_init(smem.full + stage, 1), smem.readers[stage] = 0;
        fence_mbarrier_init();
        if (!STREAMED) cp_async_bulk(smem.filters, filters, sizeof(smem.filters), smem.full);
        else
            for (int stage = 0; stage < STAGES; stage++) request(stage, stage);
    }
    // Called after it: waits for filters that stay.
    __device__ __forceinline__ void wait_for_all() {
        if (!STREAMED) mbarrier_wait(filter_storage().full, 0);
    }
    // Starts the copy of stage ``wanted`` of the round; each tile of pixels reads the stages of its tile of maps.
    __device__ __forceinline__ void request(int stage, int wanted) {
        const int source = wanted / (PIXEL_TILES * TILE_STAGES) * TILE_STAGES + wanted % TILE_STAGES;
        cp_async_bulk(filter_storage().filters + stage * STAGE_BYTES, filters + source * STAGE_BYTES, STAGE_BYTES,
                      filter_storage().full + stage);
    }
    __device__ __forceinline__ void begin_round(bool last) { number = 0, last_round = last; }
    // Waits for a stage of a tile of maps; returns its descriptor.
    __device__ __forceinline__ unsigned long long wait(int map_tile, int stage) {
        const unsigned long long first = make_smem_desc(shared_address(filter_storage().filters), 1024, 128);
        if (!STREAMED) return advance_desc(first, (map_tile * TILE_STAGES + stage) * STAGE_BYTES);
        mbarrier_wait(filter_storage().full + pipe.stage, pipe.phase);
        return advance_desc(first, pipe.stage * STAGE_BYTES);
    }
    // Loads this thread's metadata of a stage in shared memory.
    __device__ __forceinline__ void load_words(unsigned (&words)[WORDS + 1], int map_tile, int stage) {
        const int place = STREAMED ? pipe.stage : map_tile * TILE_STAGES + stage;
        const unsigned char *first = filter_storage().filters + place * STAGE_BYTES + STAGE_STEPS * STEP_BYTES;
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            words[i] = load_metadata_word(first + i * WORD_BYTES + threadIdx.x % 128 * 4);
    }
    // Called when this warp has read the stage. The last warp starts the copy of the stage that replaces it, if any.
    __device__ __forceinline__ void release() {
        if (!STREAMED) return;
        if (threadIdx.x % 32 == 0 && arrives_last(filter_storage().readers + pipe.stage, THREADS / 32) &&
            (!last_round || number + STAGES < ROUND_STAGES))
            request(pipe.stage, (number + STAGES) % ROUND_STAGES);
        pipe.advance();
        number++;
    }
    // A warpgroup without maps releases all stages of a round unread.
    __device__ __forceinline__ void skip_round() {
        for (int stage = 0; stage < ROUND_STAGES; stage++) wait(0, 0), release();
    }
};

__device__ __forceinline__ int pixel_offset(int row, int column) {
    return row * ROW_BYTES + column % Layer::STRIDE * PHASE_BYTES + column / Layer::STRIDE * 16;
}

// The sums of one tile: 64 maps, ROWS rows of eight pixels from the one that ``pixels`` describes.
__device__ __forceinline__ void multiply(float (&sums)[4 * ROWS], Filters &filters, int map_tile,
                                         unsigned long long pixels) {
    // Whether all products are issued without waits between stages. Alternating metadata registers need unrolled code.
    constexpr bool AT_ONCE = PARTS == 1 && !STREAMED && (!SPARSE || STEPS <= 64);
    constexpr int UNROLLED = AT_ONCE && STEPS <= 64 ? TILE_STAGES : 1;
    constexpr int PASSES = PARTS + WEIGHT_PARTS - 1;
    unsigned words[2][WORDS + 1];
#pragma unroll UNROLLED
    for (int stage = 0; stage < TILE_STAGES; stage++) {
        const unsigned long long filter = filters.wait(map_tile, stage);
        unsigned(&metadata)[WORDS + 1] = words[AT_ONCE ? stage % 2 : 0];
        if (SPARSE) {
            if (AT_ONCE && stage > 1) wgmma_wait_older_groups();
            filters.load_words(metadata, map_tile, stage);
        }
        float partial[4 * ROWS] = {};
        float(&into)[4 * ROWS] = PARTS == 2 ? partial : sums;
        wgmma_fence();
#pragma unroll
        for (int pass = PASSES - 1; pass >= 0; pass--)  // small terms first: pass 2 has low filters, 1 low pixels
#pragma unroll
            for (int i = 0; i < STAGE_STEPS; i++) {
                const int first = stage * STAGE_STEPS;
                const int run = WHOLE_RUNS ? stage * (STAGE_STEPS / RUN_STEPS) + i / RUN_STEPS : first / RUN_STEPS;
                const int step = WHOLE_RUNS ? i % RUN_STEPS : first % RUN_STEPS + i;
                const int of_filter = (WEIGHT_PARTS * (i - i % RUN_STEPS) + i % RUN_STEPS) * STEP_BYTES +
                                      (pass == 2 ? RUN_STEPS * STEP_BYTES : 0);
                const int of_pixels = (SPARSE ? pixel_offset(0, run) : pixel_offset(run / Layer::KERNEL, run % Layer::KERNEL)) +
                                      step * STEP_PLANES * PLANE_BYTES + (pass == 1 ? MAPS_BYTES : 0);
                const unsigned long long a = advance_desc(filter, of_filter), b = advance_desc(pixels, of_pixels);
                const bool clear = pass == PASSES - 1 && i == 0 && (PARTS == 2 || stage == 0);
                if constexpr (!SPARSE) wgmma_f16(into, a, b, clear);
                else if (i % 2) wgmma_f16_sparse<1>(into, a, b, metadata[i / 2], clear);
                else wgmma_f16_sparse<0>(into, a, b, metadata[i / 2], clear);
            }
        wgmma_commit_group();
        if (!AT_ONCE) {
            wgmma_wait_group(into);
            filters.release();
        }
        if (PARTS == 2)
#pragma unroll
            for (int i = 0; i < 4 * ROWS; i++) sums[i] += partial[i];
    }
    if (AT_ONCE) wgmma_wait_group(sums);
}

// Applies bias, activation and pooling to a tile, whose first pixel is (row0, column0) of the result, and stores it in
// y (MAPS, POOLED_HEIGHT, POOLED_WIDTH).
__device__ __forceinline__ void store_tile(OUTPUT *y, const float (&sums)[4 * ROWS], int map_tile, int row0,
                                           int column0) {
    typedef Layer L;
    const int lane = threadIdx.x % 32, column = column0 + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int map = map_tile * TILE_MAPS + threadIdx.x % 128 / 32 * 16 + half * 8 + lane / 4;
        if (map >= L::MAPS) break;
        const float factor = filter_storage().factors[map], shift = filter_storage().bias[map];
        auto activated = [&](float sum) {
            return activate<typename L::Activation, PARTS == 1>(L::WITH_BIAS ? fmaf(sum, factor, shift) : sum * factor);
        };
        OUTPUT *own = y + map * (L::POOLED_HEIGHT * L::POOLED_WIDTH);
#pragma unroll
        for (int i = 0; i < ROWS; i += L::WINDOW) {
            const int row = row0 + i, at = 4 * i + 2 * half;
            if (L::WINDOW == 1) {
                if (row >= L::POOLED_HEIGHT) break;
                if (column < L::POOLED_WIDTH) own[row * L::POOLED_WIDTH + column] = OUTPUT(activated(sums[at]));
                if (column + 1 < L::POOLED_WIDTH)
                    own[row * L::POOLED_WIDTH + column + 1] = OUTPUT(activated(sums[at + 1]));
                continue;
            }
            if (row / 2 >= L::POOLED_HEIGHT) break;
            // Windows over the border pool only the pixels inside.
            const bool right = L::POOLED_WIDTH * L::WINDOW <= L::WIDTH || column + 1 < L::WIDTH;
            const bool below = L::POOLED_HEIGHT * L::WINDOW <= L::HEIGHT || row + 1 < L::HEIGHT;
            float pooled = L::IS_MAX ? sums[at] : activated(sums[at]);
            const float others[3] = {sums[at + 1], sums[at + 4], sums[at + 5]};
            const bool counts[3] = {right, below, right && below};
#pragma unroll
            for (int j = 0; j < 3; j++)
                if (counts[j]) pooled = L::IS_MAX ? greater(pooled, others[j]) : pooled + activated(others[j]);
            // The greatest sum gives the greatest value, because factors are positive and activations monotone.
            pooled = L::IS_MAX ? activated(pooled) : pooled / ((1 + right) * (1 + below));
            if (column / 2 < L::POOLED_WIDTH) own[row / 2 * L::POOLED_WIDTH + column / 2] = OUTPUT(pooled);
        }
    }
}

constexpr int RESULTS = Layer::MAPS * Layer::POOLED_HEIGHT * Layer::POOLED_WIDTH;
static_assert(!STAGED || RESULTS * sizeof(OUTPUT) % 16 == 0, "results are copied 16 bytes at a time");

// Computes all tiles of the maps in shared memory, from row ``row0`` of the result on. With STAGED, results are
// collected in shared memory and stored in whole lines; otherwise each thread stores its own.
__device__ __forceinline__ void convolve_tiles(OUTPUT *y, OUTPUT *staged, const unsigned char *maps, Filters &filters,
                                               int row0, int group) {
    const unsigned long long pixels = make_smem_desc(shared_address(maps), PLANE_BYTES, Layer::STRIDE * ROW_BYTES);
#pragma unroll 1
    for (int tile = 0; tile < MAP_TILES * PIXEL_TILES; tile++) {
        const int map_tile = tile / PIXEL_TILES, row = tile / STRIPS % CHUNKS * ROWS, strip = tile % STRIPS;
        float sums[4 * ROWS] = {};
        multiply(sums, filters, map_tile, advance_desc(pixels, row * Layer::STRIDE * ROW_BYTES + strip * 8 * 16));
        store_tile(STAGED ? staged : y, sums, map_tile, row0 + row, strip * 8);
    }
    if (!STAGED) return;
    warpgroup_barrier(1 + group);
    for (int i = threadIdx.x % 128; i < RESULTS * sizeof(OUTPUT) / 16; i += 128) ((uint4 *)y)[i] = ((uint4 *)staged)[i];
}
