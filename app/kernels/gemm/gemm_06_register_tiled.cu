// The kernel works like `wide-loads`, but shared memory holds two tiles of each operand: while one is multiplied, the
// values of the next are on their way from memory into registers. In the last layer the lanes that hold a row of y find
// its argmax by shuffles.
//
// Data: x (rows, DEPTH) INPUT; w (DEPTH, N) float; bias (N) or null; y (rows, N) OUTPUT; with ARGMAX also
//       labels (rows) uint8: the column of the greatest stored value of each row, the first among equals; with SOFTMAX y
//       is that of each row.
// Launch: blockIdx.x = tile of BM rows, blockIdx.y = tile of BN columns, THREADS threads. A row of the tile is held
//         by BN / TN neighbouring lanes: argmax is a handful of shuffles.
// The sum of an element runs over k in order, as in `naive`: both agree to the bit. A plan that has another kernel for
// few images cuts long sums into PARTS.
#include "parts.cuh"
#include "row_softmax.cuh"

constexpr int LANES_N = BN / TN;
constexpr int THREADS = (BM / TM) * LANES_N;
constexpr int STEPS = (DEPTH + BK - 1) / BK;
constexpr int X_LOADS = BM * BK / THREADS;
constexpr int W_LOADS = BK * BN / THREADS;
constexpr int PADDED_BM = BM + 4;  // x is stored transposed: the padding spreads a column over the banks

static_assert(PARTS == 1 || PART % BK == 0, "a part ends with a step");
static_assert(TM == 4 && TN == 4, "tiles are read from shared memory four floats at a time");
static_assert(THREADS % 32 == 0 && 32 % LANES_N == 0, "a row of the tile must lie within one warp");
static_assert(BM * BK % THREADS == 0 && BK * BN % THREADS == 0, "threads must share the tiles out evenly");
static_assert(!ARGMAX || N <= BN, "argmax needs a whole row in one block");
static_assert(!ARGMAX || N <= 256, "a label is one byte");

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_register_tiled(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                        OUTPUT *__restrict__ y,
#if ARGMAX
                        uint8 *__restrict__ labels,
#endif
                        int rows) {
    __shared__ __align__(16) float xs[2][BK][PADDED_BM];
    __shared__ __align__(16) float ws[2][BK][BN];

    const int t = threadIdx.x;
    const long long row0 = blockIdx.x * (long long)BM;
    const int column0 = blockIdx.y * BN;
    const int thread_m = t / LANES_N, thread_n = t % LANES_N;

    float next_x[X_LOADS], next_w[W_LOADS];
    auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < X_LOADS; i++) {
            const int at = t + i * THREADS, k = k0 + at % BK;
            const long long row = row0 + at / BK;
            next_x[i] = row < rows && k < DEPTH ? float(x[row * DEPTH + k]) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < W_LOADS; i++) {
            const int at = t + i * THREADS, k = k0 + at / BN, n = column0 + at % BN;
            next_w[i] = k < DEPTH && n < N ? w[k * N + n] : 0.0f;
        }
    };
    auto store = [&](int stage) {
#pragma unroll
        for (int i = 0; i < X_LOADS; i++) xs[stage][(t + i * THREADS) % BK][(t + i * THREADS) / BK] = next_x[i];
#pragma unroll
        for (int i = 0; i < W_LOADS; i++) ws[stage][(t + i * THREADS) / BN][(t + i * THREADS) % BN] = next_w[i];
    };

    float sums[TM][TN] = {}, totals[TM][TN] = {};
    fetch(0);
    store(0);
    __syncthreads();
    for (int step = 0; step < STEPS; step++) {
        const int stage = step % 2;
        if (step + 1 < STEPS) fetch((step + 1) * BK);
#pragma unroll
        for (int k = 0; k < BK; k++) {
            alignas(16) float a[TM], b[TN];
            *(float4 *)a = *(const float4 *)&xs[stage][k][thread_m * TM];
            *(float4 *)b = *(const float4 *)&ws[stage][k][thread_n * TN];
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
        }
        if (PARTS > 1) end_part(totals, sums, (step + 1) * BK);
        if (step + 1 < STEPS) store(1 - stage);
        __syncthreads();
    }

    const auto &found = PARTS > 1 ? totals : sums;
#pragma unroll
    for (int i = 0; i < TM; i++) {
        const long long row = row0 + thread_m * TM + i;
        float best = __int_as_float(0xff800000);  // minus infinity
        int best_n = N;  // beaten by any column
        auto column = [&](int j) { return column0 + thread_n * TN + j; };
        auto score = [&](int j) {
            return epilogue<HAS_BIAS, ACTIVATION>(found[i][j], HAS_BIAS ? bias[column(j)] : 0.0f);
        };
        auto exists = [&](int j) { return column(j) < N; };
        float shares[TN];
        if constexpr (SOFTMAX && LANES_N > 4) softmax_of_row<-4, -2, -1, 2, 1>(shares, score, exists);
        else if constexpr (SOFTMAX) softmax_of_row<-2, -1, 2, 1>(shares, score, exists);  // of 16 columns
#pragma unroll
        for (int j = 0; j < TN; j++) {
            const int n = column(j);
            if (n >= N) continue;
            const OUTPUT value = OUTPUT(SOFTMAX ? shares[j] : score(j));
            if (row < rows) y[row * N + n] = value;
            if (ARGMAX && wins(float(value), n, best, best_n)) best = value, best_n = n;
        }
#if ARGMAX
        find_best_of_lanes<LANES_N>(best, best_n);
        if (thread_n == 0 && row < rows) labels[row] = best_n;
#endif
    }
}
