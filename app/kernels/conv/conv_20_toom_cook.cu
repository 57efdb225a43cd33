// The method of Toom and Cook multiplies polynomials through their values at K + 1 points. Transposed, it computes two
// neighbouring outputs of a row of K taps with K + 1 multiplications instead of 2 K, as Winograd's method does for
// convolutions.
//
// Data: x (images, C, H, W) INPUT; w packed (blocks of BM maps, C, K + 1 points, K rows, BM) float, padded with zero
//       maps; bias (M) or null; y (images, M, PH, PW) OUTPUT, pooled by POOL x POOL windows with stride POOL (POOL = 1:
//       not pooled). Stride 1 alone. A pixel that is not finite always affects both outputs of a pair.
// Launch: blockIdx.x = tile of TILE_R bands of TR rows x TILE_C pairs of columns, of IMAGES images; blockIdx.y = block of
//         BM = GROUPS * TM maps. A thread is one point, one group of TM maps, one band and one pair.
// Sums run over c, then p, at each point: not the order of `direct`, and rounded otherwise (see
// rows/toom_cook.py).
#include "async_copy.cuh"
#include "common.cuh"
#include "shared_storage.cuh"

constexpr int POINTS = K + 1;
constexpr int OH = H + 2 * PADDING - K + 1, OW = W + 2 * PADDING - K + 1;  // before pooling
constexpr int TILES_R = (PH * POOL + TILE_R * TR - 1) / (TILE_R * TR);
constexpr int TILES_C = (PW * POOL + TILE_C * 2 - 1) / (TILE_C * 2);
constexpr int COLUMNS = IMAGES * TILE_R * TILE_C;  // of TR outputs at a point, per block and map
constexpr int THREADS = (POINTS * GROUPS * COLUMNS + 31) / 32 * 32;
constexpr int BM = GROUPS * TM;
constexpr int STEPS = C / CK;
constexpr int STAGES = STEPS > 1 ? 2 : 1;

constexpr int VECTOR = TR % 4 == 0 ? 4 : TR % 2 == 0 ? 2 : 1;           // floats a load of a column
constexpr int READ = (TR + K - 1 + VECTOR - 1) / VECTOR * VECTOR;       // floats read for TR outputs
constexpr int IN_R = TILE_R * TR + K - 1;                               // rows of the input tile
constexpr int WHOLE = (IN_R + VECTOR - 1) / VECTOR * VECTOR;
constexpr int PITCH = WHOLE + (WHOLE % (2 * VECTOR) == 0 ? VECTOR : 0);  // an odd number of vectors: no bank conflicts
constexpr int POINT_FLOATS = IMAGES * TILE_C * PITCH;                   // a channel at a point
constexpr int FILTER_START = (CK * POINTS * POINT_FLOATS + 3) / 4 * 4;
constexpr int FILTER_FLOATS = CK * POINTS * K * BM;
constexpr int WIDE = FILTER_FLOATS % 4 == 0 ? 4 : 1;  // floats a copy
constexpr int STAGE_FLOATS = FILTER_START + (FILTER_FLOATS + 3) / 4 * 4;
constexpr int RUNS = CK * IMAGES * TILE_C * IN_R;  // of POINTS pixels, transformed in each step
constexpr int LOADS = (RUNS + THREADS - 1) / THREADS;

// The exchange of sums between threads: [point][AT_ONCE maps of each group][column][row], in the memory of the stages.
constexpr int EXCHANGED_MAPS = GROUPS * AT_ONCE;
constexpr int EXCHANGE_FLOATS = POINTS * EXCHANGED_MAPS * COLUMNS * TR;
// After it a thread computes the two outputs of a pair, or those of a pooling window, for one map after the other.
constexpr int UNIT_R = POOL, UNIT_C = POOL == 1 ? 2 : POOL;
constexpr int UNITS_R = TILE_R * TR / UNIT_R, UNITS_C = TILE_C * 2 / UNIT_C;
constexpr int UNITS = IMAGES * UNITS_R * UNITS_C;  // of a map
constexpr int MAPS_AT_ONCE = THREADS > UNITS ? THREADS / UNITS : 1;
constexpr bool STORE_BOTH = POOL == 1 && PW % 2 == 0;

static_assert(S == 1, "neighbouring outputs must share pixels as the taps of one polynomial do");
static_assert(C % CK == 0, "a stage must hold CK whole channels");
static_assert(TM % AT_ONCE == 0, "an exchange must hold whole maps of each thread");
static_assert(TR % POOL == 0 && TILE_C * 2 % UNIT_C == 0, "a tile must hold whole pooling windows");

union SharedStorage {
    float stages[STAGES * STAGE_FLOATS];
    float exchange[EXCHANGE_FLOATS];
};

// Element `at` of row `point` of the input's transform; row `place` of the output's. Exact in float32, and constants in
// unrolled loops.
__device__ __forceinline__ float input_factor(int point, int at) {
    constexpr float factors[POINTS][POINTS] = INPUT_TRANSFORM;
    return factors[point][at];
}
__device__ __forceinline__ float output_factor(int place, int point) {
    constexpr float factors[2][POINTS] = OUTPUT_TRANSFORM;
    return factors[place][point];
}

// Count floats from an address that is a multiple of Width floats.
template <int Width, int Count>
__device__ __forceinline__ void read(float (&values)[Count], const float *from) {
#pragma unroll
    for (int i = 0; i < Count; i += Width) {
        if (Width == 4) *(float4 *)(values + i) = *(const float4 *)(from + i);
        if (Width == 2) *(float2 *)(values + i) = *(const float2 *)(from + i);
        if (Width == 1) values[i] = from[i];
    }
}

// Output `place` of a pair, 0 or 1, from its sums at all points. Explicit fused multiply-adds round pooled and unpooled
// outputs in the same way.
__device__ __forceinline__ float output_of(const float (&sums)[POINTS], int place) {
    constexpr int LAST = POINTS - 1;
    float value = place == 0 ? sums[0] : sums[LAST];  // infinity contributes to the second output alone, once
#pragma unroll
    for (int point = place == 0 ? 1 : 0; point < LAST; point++)
        if (output_factor(place, point) != 0) value = fmaf(output_factor(place, point), sums[point], value);
    return value;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    conv_toom_cook(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                   OUTPUT *__restrict__ y, int images) {
    float *const shared = shared_storage<SharedStorage>().stages;
    const int t = threadIdx.x;
    const int tile = blockIdx.x % (TILES_R * TILES_C);
    const long long image0 = (long long)(blockIdx.x / (TILES_R * TILES_C)) * IMAGES;
    const int tile_row = tile / TILES_C * (TILE_R * TR), tile_column = tile % TILES_C * (TILE_C * 2);
    const int last_image = min((long long)IMAGES, images - image0) - 1;
    const INPUT *block_x = x + image0 * (C * H * W);
    const float *block_w = w + (long long)blockIdx.y * (C * POINTS * K * BM);

    // Run i of this thread: POINTS neighbouring pixels of a row, from `offset` on in the first step. Pixels with a bit
    // in `inside` exist; the others, beyond the image or the batch, are zeros.
    struct Run {
        int offset;
        unsigned inside;
    };
    auto run_of = [&](int i) {
        const int at = t + i * THREADS;
        const int row = tile_row - PADDING + at % IN_R, column = tile_column - PADDING + at / IN_R % TILE_C * 2;
        const int image = at / (IN_R * TILE_C) % IMAGES, channel = at / (IN_R * TILE_C * IMAGES);
        Run run = {((image * C + channel) * H + row) * W + column, 0};
#pragma unroll
        for (int j = 0; j < POINTS; j++) run.inside |= unsigned(unsigned(column + j) < unsigned(W)) << j;
        if (at >= RUNS || image > last_image || unsigned(row) >= unsigned(H)) run.inside = 0;
        return run;
    };
    auto load = [&](int step, const Run &run, INPUT(&pixels)[POINTS]) {
        const INPUT *from = block_x + step * (CK * H * W) + run.offset;
#pragma unroll
        for (int j = 0; j < POINTS; j++) pixels[j] = run.inside >> j & 1 ? from[j] : INPUT(0);
    };
    auto transform = [&](int step, int i, const INPUT(&pixels)[POINTS]) {
        const int at = t + i * THREADS;
        if (at >= RUNS) return;
        const int channel = at / (IN_R * TILE_C * IMAGES), column = at / IN_R % (TILE_C * IMAGES);
        float *to = shared + step % STAGES * STAGE_FLOATS + channel * (POINTS * POINT_FLOATS) + column * PITCH + at % IN_R;
#pragma unroll
        for (int point = 0; point < POINTS; point++) {
            const int degree = point < K ? K - 1 : K;  // of a polynomial with leading coefficient 1
            float value = float(pixels[degree]);
#pragma unroll
            for (int j = degree - 1; j >= 0; j--)
                if (input_factor(point, j) != 0) value = fmaf(input_factor(point, j), float(pixels[j]), value);
            to[point * POINT_FLOATS] = value;
        }
    };
    auto fetch_filters = [&](int step) {
        float *to = shared + step % STAGES * STAGE_FLOATS + FILTER_START + t * WIDE;
        const float *from = block_w + (long long)step * FILTER_FLOATS + t * WIDE;
        constexpr int COPIES = (FILTER_FLOATS + THREADS * WIDE - 1) / (THREADS * WIDE);
#pragma unroll(COPIES <= 16 ? COPIES : 4)
        for (int i = 0; i < COPIES; i++) {
            const int at = i * (THREADS * WIDE);
            if (FILTER_FLOATS % (THREADS * WIDE) != 0 && at + t * WIDE >= FILTER_FLOATS) break;
            if (WIDE == 4) cp_async_16(to + at, from + at);
            else cp_async(to + at, from + at);
        }
        cp_async_commit_group();
    };

    const int column = t % COLUMNS, group = t / COLUMNS % GROUPS, point = t / (COLUMNS * GROUPS);
    const int pair = column % TILE_C, band = column / TILE_C % TILE_R, image = column / (TILE_C * TILE_R);
    const bool active = point < POINTS;
    float sums[TM][TR] = {};

    // The first run of the next step is loaded into registers during the arithmetic; further runs after it.
    INPUT pixels[POINTS];
    auto transform_all = [&](int step) {
        transform(step, 0, pixels);
#pragma unroll 1
        for (int i = 1; i < LOADS; i++) {
            load(step, run_of(i), pixels);
            transform(step, i, pixels);
        }
    };
    fetch_filters(0);
    const Run first_run = run_of(0);
    load(0, first_run, pixels);
    transform_all(0);
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        cp_async_wait<0>();
        __syncthreads();  // this stage is complete, and all threads have read the other one
        if (step + 1 < STEPS) {
            fetch_filters(step + 1);
            load(step + 1, first_run, pixels);
        }
        const float *stage = shared + step % STAGES * STAGE_FLOATS;
        if (active)
#pragma unroll 1
            for (int channel = 0; channel < CK; channel++) {
                alignas(16) float values[READ];
                read<VECTOR>(values, stage + (channel * POINTS + point) * POINT_FLOATS +
                                         (image * TILE_C + pair) * PITCH + band * TR);
                const float *filters = stage + FILTER_START + (channel * POINTS + point) * (K * BM) + group * TM;
#pragma unroll
                for (int p = 0; p < K; p++) {
                    alignas(16) float taps[TM];
                    read<TM % 4 == 0 ? 4 : TM % 2 == 0 ? 2 : 1>(taps, filters + p * BM);
#pragma unroll
                    for (int m = 0; m < TM; m++)
#pragma unroll
                        for (int r = 0; r < TR; r++) sums[m][r] = fmaf(values[r + p], taps[m], sums[m][r]);
                }
            }
        if (step + 1 < STEPS) transform_all(step + 1);
    }

#pragma unroll
    for (int first = 0; first < TM; first += AT_ONCE) {
        __syncthreads();  // all threads have read the stages and the last exchange
        if (active)
#pragma unroll
            for (int m = 0; m < AT_ONCE; m++) {
                float *to = shared + (((point * GROUPS + group) * AT_ONCE + m) * COLUMNS + column) * TR;
#pragma unroll
                for (int r = 0; r < TR; r += VECTOR) {
                    const float *from = &sums[first + m][r];
                    if (VECTOR == 4) *(float4 *)(to + r) = float4{from[0], from[1], from[2], from[3]};
                    if (VECTOR == 2) *(float2 *)(to + r) = float2{from[0], from[1]};
                    if (VECTOR == 1) to[r] = from[0];
                }
            }
        __syncthreads();
        if (MAPS_AT_ONCE > 1 && t >= MAPS_AT_ONCE * UNITS) continue;
        for (int unit = MAPS_AT_ONCE > 1 ? t % UNITS : t; unit < UNITS; unit += THREADS) {
            const int top = unit / UNITS_C % UNITS_R * UNIT_R, left = unit % UNITS_C * UNIT_C;  // in the tile
            const int of_image = unit / (UNITS_C * UNITS_R);
            const int row = (tile_row + top) / POOL, out_column = (tile_column + left) / POOL;  // of the output
            if (of_image > last_image || row >= PH || out_column >= PW) continue;
            OUTPUT *place = y + ((image0 + of_image) * M * PH + row) * PW + out_column;
#pragma unroll 1
            for (int i = MAPS_AT_ONCE > 1 ? t / UNITS : 0; i < EXCHANGED_MAPS; i += MAPS_AT_ONCE) {
                const int map = blockIdx.y * BM + i / AT_ONCE * TM + first + i % AT_ONCE;
                if (map >= M) break;
                const float shift = HAS_BIAS ? bias[map] : 0.0f;
                float outputs[UNIT_R][UNIT_C];
#pragma unroll
                for (int r = 0; r < UNIT_R; r++)
#pragma unroll
                    for (int c = 0; c < UNIT_C; c++) {
                        const int pair = UNIT_C % 2 == 0 ? left / UNIT_C * (UNIT_C / 2) + c / 2 : (left + c) / 2;
                        const int of_band = (of_image * TILE_R + (top + r) / TR) * TILE_C + pair;
                        const float *from = shared + (i * COLUMNS + of_band) * TR + (top + r) % TR;
                        float values[POINTS];
#pragma unroll
                        for (int j = 0; j < POINTS; j++) values[j] = from[j * (EXCHANGED_MAPS * COLUMNS * TR)];
                        const bool second = (UNIT_C % 2 == 0 ? c : left + c) % 2;
                        const float sum = second ? output_of(values, 1) : output_of(values, 0);
                        outputs[r][c] = epilogue<HAS_BIAS, ACTIVATION>(sum, shift);
                    }
                OUTPUT *out = place + (long long)map * (PH * PW);
                if (POOL > 1) {
                    *out = OUTPUT(
                        pool_window<POOL, POOL_IS_MAX, PH, PW, OH, OW>(row, out_column, outputs[0], UNIT_C));
                } else if (STORE_BOTH) {
                    store2(out, outputs[0]);
                } else {
                    *out = OUTPUT(outputs[0][0]);
                    if (out_column + 1 < PW) out[1] = OUTPUT(outputs[0][UNIT_C - 1]);
                }
            }
        }
    }
}
