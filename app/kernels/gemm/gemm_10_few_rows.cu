// Of few rows, one warp computes 32 columns of TM rows, alone: its weights lie packed in the order in which its lanes
// read them, so each lane copies what it multiplies itself, far ahead, and no barrier stops the sum.
//
// Data: x (rows, DEPTH) INPUT; w packed (blocks of 32 columns, DEPTH / 4, 32, 4) float, padded with zeros; bias (N) or
//       null; y (rows, N) OUTPUT, with SOFTMAX that of each row; with ARGMAX also labels (rows) uint8: the column of the
//       greatest stored value of each row, the first among equals; with several PARTS workspace parts (rows, PARTS, N) float.
// Launch: blockIdx.x = TM rows, blockIdx.y = 32 columns, blockIdx.z = part of the depth, one warp; with several PARTS
//         then gemm_few_rows_finish with one thread per element of y.
// The sum of an element runs over k in order, as in `naive`, or in parts as in parts.cuh: both agree to the bit.
#include "async_copy.cuh"
#include "common.cuh"
#include "mma.cuh"
#include "parts.cuh"
#include "row_softmax.cuh"

constexpr int CHUNK = 64, QUADS = CHUNK / 4, X_LOADS = CHUNK / 32;  // terms of a sum per stage
constexpr int CHUNKS = (DEPTH + CHUNK - 1) / CHUNK;
constexpr int STAGES = 4;  // chunks in shared memory and in registers: one is multiplied while the others are loaded

static_assert(PARTS == 1 || PART % CHUNK == 0, "a part consists of whole chunks");
static_assert(!ARGMAX || PARTS == 1, "argmax needs whole sums");
static_assert(!ARGMAX || N <= 32, "argmax needs a whole row in one warp");

struct Chunks {
    Vector<float, 4> weights[STAGES][QUADS][32];
    Vector<float, 4> inputs[2][TM][QUADS];
};

extern "C" __global__ void __launch_bounds__(32)
    gemm_few_rows(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                  OUTPUT *__restrict__ y,
#if ARGMAX
                  uint8 *__restrict__ labels,
#endif
#if PART < DEPTH
                  float *__restrict__ parts,
#endif
                  int rows) {
    __shared__ __align__(16) Chunks chunks;
    const int lane = threadIdx.x, column = blockIdx.y * 32 + lane;
    const long long row0 = blockIdx.x * (long long)TM;
    const int begin = PARTS == 1 ? 0 : blockIdx.z * (PART / CHUNK);
    const int end = PARTS == 1 ? CHUNKS : min(begin + PART / CHUNK, CHUNKS);
    const float *own_w = w + ((long long)blockIdx.y * (CHUNKS * QUADS) * 32 + lane) * 4;

    auto request = [&](int chunk, int stage) {
        if (chunk < end)
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++)
                cp_async_16(&chunks.weights[stage][quad][lane], own_w + (long long)(chunk * QUADS + quad) * 128);
        cp_async_commit_group();
    };
    INPUT ahead[STAGES][TM][X_LOADS];
    auto load = [&](INPUT(&values)[TM][X_LOADS], int chunk) {
#pragma unroll
        for (int i = 0; i < TM * X_LOADS; i++) {
            const int m = i / X_LOADS, k = chunk * CHUNK + i % X_LOADS * 32 + lane;
            values[m][i % X_LOADS] = row0 + m < rows && k < DEPTH ? x[(row0 + m) * DEPTH + k] : INPUT(0);
        }
    };

    float sums[TM] = {};
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
            auto &inputs = chunks.inputs[stage % 2];
#pragma unroll
            for (int i = 0; i < TM * X_LOADS; i++)
                ((float *)inputs[i / X_LOADS])[i % X_LOADS * 32 + lane] = float(ahead[stage][i / X_LOADS][i % X_LOADS]);
            load(ahead[stage], first + stage + STAGES);
            cp_async_wait<STAGES - 2>();
            __syncwarp();
            request(first + stage + STAGES - 1, (stage + STAGES - 1) % STAGES);
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++) {
                const Vector<float, 4> b = chunks.weights[stage][quad][lane];
                Vector<float, 4> a[TM];
#pragma unroll
                for (int m = 0; m < TM; m++) a[m] = inputs[m][quad];
#pragma unroll
                for (int k = 0; k < 4; k++)
#pragma unroll
                    for (int m = 0; m < TM; m++) sums[m] = fmaf(a[m].at[k], b.at[k], sums[m]);
            }
        }

#if PART < DEPTH
#pragma unroll
    for (int m = 0; m < TM; m++)
        if (column < N && row0 + m < rows) parts[((row0 + m) * PARTS + blockIdx.z) * N + column] = sums[m];
#else
    const float shift = HAS_BIAS && column < N ? bias[column] : 0.0f;
#pragma unroll
    for (int m = 0; m < TM; m++) {
        auto score = [&](int) { return epilogue<HAS_BIAS, ACTIVATION>(sums[m], shift); };
        float share[1];
        if constexpr (SOFTMAX)
            softmax_of_row<-16, -8, -4, -2, -1>(share, score, [&](int) { return column < N; });
        const OUTPUT value = OUTPUT(SOFTMAX ? share[0] : score(0));
        const bool exists = column < N && row0 + m < rows;
        if (exists) y[(row0 + m) * N + column] = value;
#if ARGMAX
        float best = column < N ? float(value) : __int_as_float(0xff800000);  // minus infinity
        int best_column = column < N ? column : N;                           // beaten by any column
        find_best_of_lanes<32>(best, best_column);
        if (lane == 0 && exists) labels[row0 + m] = best_column;
#endif
    }
#endif
}

#if PART < DEPTH
extern "C" __global__ void gemm_few_rows_finish(const INPUT *__restrict__ x, const float *__restrict__ w,
                                                const float *__restrict__ bias, OUTPUT *__restrict__ y,
                                                const float *__restrict__ parts, int rows) {
    finish_parts(parts, bias, y, rows);
}
#endif
