// The kernel works like `register-tiled`, but mma.sync instructions multiply, each for 16 x 8 sums of a warp. Operands
// are float16, tfloat32 or, for each float32, two tfloat32 (SPLIT). Sums are float32, but tensor cores truncate them
// instead of rounding: with split operands they sum only each stage, and CUDA cores add the stages.
//
// Data: x (rows, DEPTH) INPUT; w (DEPTH, N) WEIGHT: float16, or float for tfloat32; bias (N) float or null;
//       y (rows, N) OUTPUT, with SOFTMAX that of each row; with ARGMAX also labels (rows) uint8: the column of the
//       greatest stored value of each row, the first one among equals. Shared tiles hold words: two float16 that follow each other along k, or one
//       tfloat32. In words both kinds of mma are the same: 8 along k, one fragment layout.
// Launch: blockIdx.x = tile of BM rows, blockIdx.y = tile of BN columns, a warp for each WM x WN sums of the tile. A
// plan that has another kernel for few images cuts long sums into PARTS. For some more images, they are SPREAD: a block
// computes the part blockIdx.z into workspace parts (rows, PARTS, N) float; gemm_tensor_core_finish, with one thread
// per element of y, adds them. Rows of both tiles are padded so that the 32 words of a fragment lie in 32 banks.
#include "common.cuh"
#include "mma.cuh"
#include "parts.cuh"
#include "row_softmax.cuh"

constexpr int PER_WORD = sizeof(float) / sizeof(WEIGHT);
constexpr int WORDS = BK / PER_WORD;
constexpr int GROUP = 4 * PER_WORD;  // numbers in the four words that a thread stores at once
constexpr int STEPS = (DEPTH + BK - 1) / BK;
constexpr int WARPS_N = BN / WN, THREADS = 32 * (BM / WM) * WARPS_N;
constexpr int X_GROUPS = BM * WORDS / 4, W_GROUPS = WORDS * BN / 4;
constexpr int X_LOADS = (X_GROUPS + THREADS - 1) / THREADS, W_LOADS = (W_GROUPS + THREADS - 1) / THREADS;
constexpr int MMAS_M = WM / 16, MMAS_N = WN / 8;
constexpr bool FEW_TERMS = DEPTH < 16;  // otherwise products of two low parts are below the sum's rounding errors
constexpr int X_PARTS = SPLIT && same_type<INPUT, float32> ? 2 : 1;  // bytes and float16 are exact in one tfloat32

static_assert(PARTS == 1 || (!SPLIT && PART % BK == 0), "a part ends with a step");
static_assert(!SPREAD || !ARGMAX, "argmax needs whole sums");
static_assert(WM % 16 == 0 && WN % 8 == 0, "a warp computes whole 16 x 8 products");
static_assert(BM % WM == 0 && BN % WN == 0, "warp tiles must cover the block tile exactly");
static_assert(BK % (8 * PER_WORD) == 0, "one mma takes eight words along k");
static_assert(!ARGMAX || (N <= BN && WN == BN && N <= 256), "argmax needs a row within one warp, a label is one byte");

// One word of a tile; low and high are the same number if a word holds one.
template <typename T>
__device__ __forceinline__ unsigned word(T low, T high) {
    return PER_WORD == 2 ? pack_half2(low, high) : to_tf32(low);
}

// Adds the products of high parts to sums, and those with a low part to cross.
__device__ __forceinline__ void mma_split(float (&sums)[4], float (&cross)[4], const unsigned (&a)[X_PARTS][4],
                                          const unsigned (&b)[W_PARTS][2]) {
    if constexpr (W_PARTS == 2) mma_tf32(cross, a[0], b[1]);
    if constexpr (W_PARTS * X_PARTS == 4 && FEW_TERMS) mma_tf32(cross, a[1], b[1]);
    mma_tf32(sums, a[0], b[0]);
    if constexpr (X_PARTS == 2) mma_tf32(cross, a[1], b[0]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_tensor_core(const INPUT *__restrict__ x, const WEIGHT *__restrict__ w, const float *__restrict__ bias,
                     OUTPUT *__restrict__ y,
#if ARGMAX
                     uint8 *__restrict__ labels,
#endif
#if SPREAD
                     float *__restrict__ parts,
#endif
                     int rows) {
    __shared__ __align__(16) unsigned xs[2][X_PARTS][BM][WORDS + 4];  // high parts, low parts
    __shared__ __align__(16) unsigned ws[2][W_PARTS][WORDS][BN + 8];

    const long long row0 = blockIdx.x * (long long)BM;
    const int column0 = blockIdx.y * BN;

    Vector<INPUT, GROUP> next_x[X_LOADS];
    Vector<WEIGHT, 4> next_w[W_LOADS][PER_WORD];
    auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < X_LOADS; i++) {
            const int at = threadIdx.x + i * THREADS;
            const long long row = row0 + at / (WORDS / 4);
            const int k = k0 + at % (WORDS / 4) * GROUP;
            next_x[i] = neighbours<DEPTH, GROUP>(x + row * DEPTH, k, at < X_GROUPS && row < rows);
        }
#pragma unroll
        for (int i = 0; i < W_LOADS; i++) {
            const int at = threadIdx.x + i * THREADS, k = k0 + at / (BN / 4) * PER_WORD;
#pragma unroll
            for (int p = 0; p < PER_WORD; p++)
                next_w[i][p] = neighbours<N, 4>(w + (long long)(k + p) * N, column0 + at % (BN / 4) * 4,
                                                at < W_GROUPS && k + p < DEPTH);
        }
    };
    auto store = [&](int stage) {
#pragma unroll
        for (int i = 0; i < X_LOADS; i++) {
            const int at = threadIdx.x + i * THREADS;
            const auto &from = next_x[i].at;
            alignas(16) unsigned words[X_PARTS][4];
#pragma unroll
            for (int p = 0; p < 4; p++)
                if constexpr (X_PARTS == 2) words[0][p] = split_tf32(from[p], words[1][p]);
                else words[0][p] = word(from[p * PER_WORD], from[p * PER_WORD + PER_WORD - 1]);
#pragma unroll
            for (int part = 0; part < X_PARTS; part++)
                if (at < X_GROUPS)
                    *(uint4 *)&xs[stage][part][at / (WORDS / 4)][at % (WORDS / 4) * 4] = *(const uint4 *)words[part];
        }
#pragma unroll
        for (int i = 0; i < W_LOADS; i++) {
            const int at = threadIdx.x + i * THREADS;
            const auto &low = next_w[i][0].at, &high = next_w[i][PER_WORD - 1].at;
            alignas(16) unsigned words[W_PARTS][4];
#pragma unroll
            for (int p = 0; p < 4; p++)
                if constexpr (W_PARTS == 2) words[0][p] = split_tf32(low[p], words[1][p]);
                else words[0][p] = word(low[p], high[p]);
#pragma unroll
            for (int part = 0; part < W_PARTS; part++)
                if (at < W_GROUPS)
                    *(uint4 *)&ws[stage][part][at / (BN / 4)][at % (BN / 4) * 4] = *(const uint4 *)words[part];
        }
    };

    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;  // g, t: as in mma.cuh
    const int warp_m = warp / WARPS_N * WM, warp_n = warp % WARPS_N * WN;

    float sums[MMAS_M][MMAS_N][4] = {}, cross[MMAS_M][MMAS_N][4] = {};  // cross: products of a high and a low part
    float totals[MMAS_M][MMAS_N][4] = {};
    const int begin = SPREAD ? blockIdx.z * (PART / BK) : 0, end = SPREAD ? min(begin + PART / BK, STEPS) : STEPS;
    fetch(begin * BK);
    store(0);
    __syncthreads();
    for (int step = begin; step < end; step++) {
        const int stage = (step - begin) % 2;
        float partial[MMAS_M][MMAS_N][4] = {};
        if (step + 1 < end) fetch((step + 1) * BK);
#pragma unroll(SPLIT ? 1 : WORDS / 8)
        for (int k = 0; k < WORDS; k += 8) {
            unsigned a[MMAS_M][X_PARTS][4], b[MMAS_N][W_PARTS][2];
#pragma unroll
            for (int i = 0; i < MMAS_M; i++)
#pragma unroll
                for (int p = 0; p < 4 * X_PARTS; p++)
                    a[i][p / 4][p % 4] = xs[stage][p / 4][warp_m + i * 16 + p % 2 * 8 + g][k + p % 4 / 2 * 4 + t];
#pragma unroll
            for (int j = 0; j < MMAS_N; j++)
#pragma unroll
                for (int p = 0; p < 2 * W_PARTS; p++)
                    b[j][p / 2][p % 2] = ws[stage][p / 2][k + p % 2 * 4 + t][warp_n + j * 8 + g];
#pragma unroll
            for (int i = 0; i < MMAS_M; i++)
#pragma unroll
                for (int j = 0; j < MMAS_N; j++)
                    if constexpr (SPLIT)
                        mma_split(partial[i][j], cross[i][j], a[i], b[j]);
                    else if constexpr (PER_WORD == 2)
                        mma_f16(sums[i][j], a[i][0], b[j][0]);
                    else
                        mma_tf32(sums[i][j], a[i][0], b[j][0]);
        }
        if (SPLIT) add(sums, partial);
        if (PARTS > 1) end_part(totals, sums, (step + 1) * BK);
        if (step + 1 < end) store(1 - stage);
        __syncthreads();
    }
    if (SPLIT) add(sums, cross);
    const auto &found = PARTS > 1 ? totals : sums;

#pragma unroll
    for (int r = 0; r < 2 * MMAS_M; r++) {  // this lane's rows: g and g + 8 of each product
        const long long row = row0 + warp_m + r * 8 + g;
        float best = __int_as_float(0xff800000);  // minus infinity
        int best_n = N;  // beaten by any column
        auto column = [&](int c) { return column0 + warp_n + c / 2 * 8 + 2 * t + c % 2; };
        auto sum = [&](int c) { return found[r / 2][c / 2][r % 2 * 2 + c % 2]; };
        auto score = [&](int c) { return epilogue<HAS_BIAS, ACTIVATION>(sum(c), HAS_BIAS ? bias[column(c)] : 0.0f); };
        float shares[MMAS_N < 4 ? 8 : 2 * MMAS_N];  // of at least 32 columns
        auto exists = [&](int c) { return c < 2 * MMAS_N && column(c) < N; };
        if constexpr (SOFTMAX) softmax_of_row<4, 2, -2, -1, 1>(shares, score, exists);
#pragma unroll
        for (int c = 0; c < 2 * MMAS_N; c++) {
            const int n = column(c);
            if (n >= N) continue;
#if SPREAD
            if (row < rows) parts[(row * PARTS + blockIdx.z) * N + n] = sum(c);
            continue;
#endif
            const OUTPUT value = OUTPUT(SOFTMAX ? shares[c] : score(c));
            if (row < rows) y[row * N + n] = value;
            if (ARGMAX && wins(float(value), n, best, best_n)) best = value, best_n = n;
        }
#if ARGMAX
        find_best_of_lanes<4>(best, best_n);
        if (t == 0 && row < rows) labels[row] = best_n;
#endif
    }
}

#if SPREAD
extern "C" __global__ void gemm_tensor_core_finish(const INPUT *__restrict__ x, const WEIGHT *__restrict__ w,
                                                   const float *__restrict__ bias, OUTPUT *__restrict__ y,
                                                   const float *__restrict__ parts, int rows) {
    finish_parts(parts, bias, y, rows);
}
#endif
