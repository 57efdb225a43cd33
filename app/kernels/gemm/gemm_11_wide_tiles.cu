// The kernel works like `register-tiled`, but a thread computes 4 x 8 elements from three loads instead of 4 x 4 from
// two, and a tile may have any number of such rows and columns.
//
// Data: x (rows, DEPTH) INPUT; w (DEPTH, N) float; bias (N) or null; y (rows, N) OUTPUT. All row-major.
// Launch: blockIdx.x = tile of BM rows, blockIdx.y = tile of BN columns, THREADS threads. A thread's columns are four
//         neighbours in each half of the tile.
// The sum of an element runs over k in order, as in `naive`: both agree to the bit. A plan that has another kernel for
// few images cuts long sums into PARTS.
#include "common.cuh"
#include "mma.cuh"
#include "parts.cuh"

constexpr int TM = 4, HALF = BN / 2, LANES_N = HALF / 4;
constexpr int TILES = BM / TM * LANES_N, THREADS = (TILES + 31) / 32 * 32;
constexpr int STEPS = (DEPTH + BK - 1) / BK;
constexpr int X_QUADS = BM * BK / 4, W_QUADS = BK * BN / 4;
constexpr int X_LOADS = (X_QUADS + THREADS - 1) / THREADS, W_LOADS = (W_QUADS + THREADS - 1) / THREADS;
constexpr int PITCH = BM % 8 == 4 ? BM : BM + 4;  // x is stored transposed: rows of k are in different banks

static_assert(PARTS == 1 || PART % BK == 0, "a part ends with a step");
static_assert(BM % TM == 0 && BN % 8 == 0 && BK % 4 == 0, "tiles are read from shared memory four floats at a time");

typedef Vector<float, 4> Quad;

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_wide_tiles(const INPUT *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                    OUTPUT *__restrict__ y, int rows) {
    __shared__ __align__(16) float xs[2][BK][PITCH];
    __shared__ __align__(16) float ws[2][BK][BN];

    const int t = threadIdx.x;
    const long long row0 = blockIdx.x * (long long)BM;
    const int column0 = blockIdx.y * BN;
    const int tile = min(t, TILES - 1);  // threads beyond the last tile only load
    const int thread_m = tile / LANES_N * TM, thread_n = tile % LANES_N * 4;

    Vector<INPUT, 4> next_x[X_LOADS];
    Quad next_w[W_LOADS];
    auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < X_LOADS; i++) {
            const int at = t + i * THREADS;
            const long long row = row0 + at / (BK / 4);
            next_x[i] = neighbours<DEPTH, 4>(x + row * DEPTH, k0 + at % (BK / 4) * 4, at < X_QUADS && row < rows);
        }
#pragma unroll
        for (int i = 0; i < W_LOADS; i++) {
            const int at = t + i * THREADS, k = k0 + at / (BN / 4);
            next_w[i] = neighbours<N, 4>(w + (long long)k * N, column0 + at % (BN / 4) * 4, at < W_QUADS && k < DEPTH);
        }
    };
    auto store = [&](int stage) {
#pragma unroll
        for (int i = 0; i < X_LOADS; i++) {
            const int at = t + i * THREADS;
            if (at >= X_QUADS) continue;
#pragma unroll
            for (int j = 0; j < 4; j++) xs[stage][at % (BK / 4) * 4 + j][at / (BK / 4)] = float(next_x[i].at[j]);
        }
#pragma unroll
        for (int i = 0; i < W_LOADS; i++) {
            const int at = t + i * THREADS;
            if (at < W_QUADS) *(Quad *)&ws[stage][at / (BN / 4)][at % (BN / 4) * 4] = next_w[i];
        }
    };

    float sums[TM][8] = {}, totals[TM][8] = {};
    fetch(0);
    store(0);
    __syncthreads();
    for (int step = 0; step < STEPS; step++) {
        const int stage = step % 2;
        if (step + 1 < STEPS) fetch((step + 1) * BK);
#pragma unroll
        for (int k = 0; k < BK; k++) {
            const Quad a = *(const Quad *)&xs[stage][k][thread_m];
            const Quad b[2] = {*(const Quad *)&ws[stage][k][thread_n], *(const Quad *)&ws[stage][k][HALF + thread_n]};
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) sums[i][j] = fmaf(a.at[i], b[j / 4].at[j % 4], sums[i][j]);
        }
        if (PARTS > 1) end_part(totals, sums, (step + 1) * BK);
        if (step + 1 < STEPS) store(1 - stage);
        __syncthreads();
    }

    if (t >= TILES) return;
    const auto &found = PARTS > 1 ? totals : sums;
#pragma unroll
    for (int i = 0; i < TM; i++) {
        const long long row = row0 + thread_m + i;
        if (row >= rows) break;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int n = column0 + j / 4 * HALF + thread_n + j % 4;
            if (n < N) y[row * N + n] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(found[i][j], HAS_BIAS ? bias[n] : 0.0f));
        }
    }
}
