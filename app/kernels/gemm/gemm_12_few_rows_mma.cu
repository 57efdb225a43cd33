// The kernel works like `few-rows`, but on tensor cores: a warp computes 8 NT columns of eight rows, in tfloat32.
//
// Data: x (rows, DEPTH) INPUT; w packed (blocks of 8 NT columns, DEPTH / 16, NT, 32 lanes, 4) float, padded with zeros;
//       bias (N) or null; y (rows, N) OUTPUT, with SOFTMAX that of each row; with ARGMAX also labels (rows) uint8: the
//       column of the greatest stored value of each row, the first among equals; with several PARTS workspace parts (rows, PARTS, N) float. Lane
//       4 g + t has rows t, t + 4, t + 8, t + 12 of column g.
// Launch: blockIdx.x = eight rows, blockIdx.y = 8 NT columns, blockIdx.z = part of the depth, one warp; with several
//         PARTS then gemm_few_rows_mma_finish with one thread per element of y.
// A sum grows by eight terms at a time, in order or in parts, as in `tensor-core`: both agree to the bit.
#include "async_copy.cuh"
#include "common.cuh"
#include "mma.cuh"
#include "parts.cuh"
#include "row_softmax.cuh"

constexpr int ROWS = 8, CHUNK = 64, PAIRS = CHUNK / 16;  // terms of the sum at a time, 16 in two products
constexpr int CHUNKS = (DEPTH + CHUNK - 1) / CHUNK;
constexpr int STAGES = 4;  // chunks in shared memory and in registers: one is multiplied while the others are loaded

static_assert(PARTS == 1 || PART % CHUNK == 0, "a part consists of whole chunks");
static_assert(!ARGMAX || PARTS == 1, "argmax needs whole sums");
static_assert(!ARGMAX || N <= 8 * NT, "argmax needs a whole row in one warp");

extern "C" __global__ void __launch_bounds__(32)
    gemm_few_rows_mma(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                      OUTPUT *__restrict__ y,
#if ARGMAX
                      uint8 *__restrict__ labels,
#endif
#if PART < DEPTH
                      float *__restrict__ parts,
#endif
                      int rows) {
    __shared__ __align__(16) Vector<float, 4> weights[STAGES][PAIRS][NT][32];
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;  // as in mma.cuh
    const int column0 = blockIdx.y * (8 * NT);
    const int begin = PARTS == 1 ? 0 : blockIdx.z * (PART / CHUNK);
    const int end = PARTS == 1 ? CHUNKS : min(begin + PART / CHUNK, CHUNKS);
    const long long row = blockIdx.x * (long long)ROWS + g;
    const INPUT *own_x = x + row * DEPTH + t;
    const int terms = row < rows ? DEPTH - t : 0;  // of the lane, from its first on
    const float *own_w = w + ((long long)blockIdx.y * (CHUNKS * PAIRS * NT) * 32 + lane) * 4;

    auto request = [&](int chunk, int stage) {
        if (chunk < end)
#pragma unroll
            for (int i = 0; i < PAIRS * NT; i++)
                cp_async_16(&weights[stage][i / NT][i % NT][lane], own_w + (long long)(chunk * PAIRS * NT + i) * 128);
        cp_async_commit_group();
    };
    INPUT ahead[STAGES][PAIRS][4];
    auto load = [&](INPUT(&values)[PAIRS][4], int chunk) {
#pragma unroll
        for (int i = 0; i < PAIRS * 4; i++) {
            const int k = chunk * CHUNK + i * 4;
            values[i / 4][i % 4] = k < terms ? own_x[k] : INPUT(0);
        }
    };

    float sums[NT][4] = {};
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        if (stage + 1 < STAGES) request(begin + stage, stage);
        load(ahead[stage], begin + stage);
    }
#pragma unroll 1
    for (int first = begin; first < end; first += STAGES)
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {  // fixed registers for each: moving them would wait
            if (first + stage >= end) break;
            cp_async_wait<STAGES - 2>();
            request(first + stage + STAGES - 1, (stage + STAGES - 1) % STAGES);
#pragma unroll
            for (int i = 0; i < 2 * PAIRS; i++) {
                const INPUT *own = &ahead[stage][i / 2][i % 2 * 2];
                const unsigned a[4] = {to_tf32(float(own[0])), 0, to_tf32(float(own[1])), 0};
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const float *taken = &weights[stage][i / 2][n][lane].at[i % 2 * 2];
                    const unsigned b[2] = {to_tf32(taken[0]), to_tf32(taken[1])};
                    mma_tf32(sums[n], a, b);
                }
            }
            load(ahead[stage], first + stage + STAGES);
        }

#if PART < DEPTH
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) {
        const int column = column0 + i / 2 * 8 + 2 * t + i % 2;
        if (column < N && row < rows) parts[(row * PARTS + blockIdx.z) * N + column] = sums[i / 2][i % 2];
    }
#else
    float best = __int_as_float(0xff800000);  // minus infinity
    int best_column = N;                      // beaten by any column
    auto column_of = [&](int i) { return column0 + i / 2 * 8 + 2 * t + i % 2; };
    auto score = [&](int i) {
        return epilogue<HAS_BIAS, ACTIVATION>(sums[i / 2][i % 2], HAS_BIAS ? bias[column_of(i)] : 0.0f);
    };
    float shares[8];  // of 32 columns
    auto exists = [&](int i) { return i < 2 * NT && column_of(i) < N; };
    if constexpr (SOFTMAX) softmax_of_row<4, 2, -2, -1, 1>(shares, score, exists);
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) {
        const int column = column_of(i);
        if (column >= N) continue;
        const OUTPUT value = OUTPUT(SOFTMAX ? shares[i] : score(i));
        if (row < rows) y[row * N + column] = value;
        if (ARGMAX && wins(float(value), column, best, best_column)) best = value, best_column = column;
    }
#if ARGMAX
    find_best_of_lanes<4>(best, best_column);
    if (t == 0 && row < rows) labels[row] = best_column;
#endif
#endif
}

#if PART < DEPTH
extern "C" __global__ void gemm_few_rows_mma_finish(const INPUT *__restrict__ x, const float *__restrict__ w,
                                                    const float *__restrict__ bias, OUTPUT *__restrict__ y,
                                                    const float *__restrict__ parts, int rows) {
    finish_parts(parts, bias, y, rows);
}
#endif
