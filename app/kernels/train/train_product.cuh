// The main loop of training's matrix products: the sum over k of a(row, k) b(column, k), for a tile of BM rows and BN
// columns. The including kernel defines the matrices and uses the sums.
//
// Each thread keeps TM x TN sums in registers. Slices of BK values of k pass through double-buffered shared memory: the
// next one is loaded while this one is multiplied. Every sum runs over k in order, whatever the tile, so results
// are bit-identical for all BM, TM, BN, TN and BK.
//
// An operand is a struct with
//   ALONG_K           whether neighbours in memory are neighbours in k, rather than in the row;
//   Row, row(r)       the constant part along a row of the operand (a column of b is a row): an address;
//   Step, step(k0, i, last)  the common part of all rows at k0 + i; a slice starts at k0;
//   at(row, step)     the value, and 0 outside the matrix or from `last` on.
#pragma once
#include "common.cuh"

constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int LANES_M = 32 / LANES_N;  // a warp is LANES_M x LANES_N threads of the tile
constexpr int GROUPS_M = TM / 4, GROUPS_N = TN / 4;
constexpr int SUMS = TM * TN;
// The blocks that a multiprocessor should hold: they limit each thread to 128 registers or, for many sums, 168.
constexpr int MIN_BLOCKS = (SUMS < 64 ? 512 : 384) / THREADS > 0 ? (SUMS < 64 ? 512 : 384) / THREADS : 1;

static_assert(TM % 4 == 0 && TN % 4 == 0, "tiles are read from shared memory four floats at a time");
static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles must cover the block tile exactly");
static_assert(32 % LANES_N == 0 && BN / TN % LANES_N == 0 && BM / TM % LANES_M == 0, "a block must be whole warps");

// Copies an operand to shared memory: which of a slice's ROWS x BK elements this thread copies.
//
// Neighbouring threads take neighbouring rows; or, along k, runs of eight values of k of four rows: 32 bytes of memory
// each, and 32 different banks, since a row of the slice is four floats longer than a multiple of 32 (or of 16, ...).
template <class Operand, int ROWS>
struct Slice {
    static constexpr int PITCH = ROWS + 4;
    static constexpr int RUN = BK % 8 == 0 ? 8 : BK % 4 == 0 ? 4 : 1;
    static constexpr int LANES = Operand::ALONG_K ? RUN : ROWS < THREADS ? ROWS : THREADS;
    static constexpr int ROWS_APART = Operand::ALONG_K ? THREADS / LANES : LANES;
    static constexpr int STEPS_APART = Operand::ALONG_K ? LANES : THREADS / LANES;
    static constexpr int ROWS_EACH = (ROWS + ROWS_APART - 1) / ROWS_APART;
    static constexpr int STEPS_EACH = (BK + STEPS_APART - 1) / STEPS_APART;

    const Operand &operand;
    int row0, step0;
    typename Operand::Row rows[ROWS_EACH];
    float values[STEPS_EACH][ROWS_EACH];

    __device__ __forceinline__ Slice(const Operand &operand, int first_row) : operand(operand) {
        const int lane = threadIdx.x % LANES, other = threadIdx.x / LANES;
        row0 = Operand::ALONG_K ? other : lane;
        step0 = Operand::ALONG_K ? lane : other < STEPS_APART ? other : BK;  // threads left over copy nothing
#pragma unroll
        for (int j = 0; j < ROWS_EACH; j++) rows[j] = operand.row(first_row + row0 + j * ROWS_APART);
    }

    __device__ __forceinline__ bool mine(int i, int j) const {
        return (ROWS % ROWS_APART == 0 || row0 + j * ROWS_APART < ROWS) &&
               (BK % STEPS_APART == 0 && THREADS % LANES == 0 || step0 + i * STEPS_APART < BK);
    }

    __device__ __forceinline__ void fetch(int k0, int last) {
#pragma unroll
        for (int i = 0; i < STEPS_EACH; i++) {
            const typename Operand::Step step = operand.step(k0, step0 + i * STEPS_APART, last);
#pragma unroll
            for (int j = 0; j < ROWS_EACH; j++) values[i][j] = mine(i, j) ? operand.at(rows[j], step) : 0.0f;
        }
    }

    __device__ __forceinline__ void store(float (*shared)[PITCH]) const {
#pragma unroll
        for (int i = 0; i < STEPS_EACH; i++)
#pragma unroll
            for (int j = 0; j < ROWS_EACH; j++)
                if (mine(i, j)) shared[step0 + i * STEPS_APART][row0 + j * ROWS_APART] = values[i][j];
    }
};

// Computes the sums for k from first up to last, exclusive, in slices that start at first; all threads of the block
// call it. finish(row, column, sums) gets four neighbouring columns, the first a multiple of four, and must check the
// edges.
template <class A, class B, class Finish>
__device__ __forceinline__ void product(const A &a, const B &b, int first_row, int first_column, int first, int last,
                                        const Finish &finish) {
    __shared__ __align__(16) float as[2][BK][BM + 4];
    __shared__ __align__(16) float bs[2][BK][BN + 4];

    Slice<A, BM> next_a(a, first_row);
    Slice<B, BN> next_b(b, first_column);

    // This thread's sums: groups of four rows, BM / GROUPS_M apart, and likewise columns, so that the lanes of a warp
    // read neighbouring 16-byte words.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int WARPS_N = BN / TN / LANES_N;
    const int thread_m = 4 * (warp / WARPS_N * LANES_M + lane / LANES_N);
    const int thread_n = 4 * (warp % WARPS_N * LANES_N + lane % LANES_N);

    float sums[TM][TN] = {};
    next_a.fetch(first, last);
    next_b.fetch(first, last);
    next_a.store(as[0]);
    next_b.store(bs[0]);
    __syncthreads();
    int stage = 0;
    for (int k0 = first; k0 < last; k0 += BK, stage = 1 - stage) {
        const bool more = k0 + BK < last;
        if (more) {
            next_a.fetch(k0 + BK, last);
            next_b.fetch(k0 + BK, last);
        }
#pragma unroll
        for (int k = 0; k < BK; k++) {
            alignas(16) float mine_a[TM], mine_b[TN];
#pragma unroll
            for (int g = 0; g < GROUPS_M; g++)
                *(float4 *)(mine_a + 4 * g) = *(const float4 *)&as[stage][k][g * (BM / GROUPS_M) + thread_m];
#pragma unroll
            for (int g = 0; g < GROUPS_N; g++)
                *(float4 *)(mine_b + 4 * g) = *(const float4 *)&bs[stage][k][g * (BN / GROUPS_N) + thread_n];
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sums[i][j] = fmaf(mine_a[i], mine_b[j], sums[i][j]);
        }
        if (more) {
            next_a.store(as[1 - stage]);
            next_b.store(bs[1 - stage]);
        }
        __syncthreads();
    }

#pragma unroll
    for (int g = 0; g < GROUPS_N; g++)
#pragma unroll
        for (int i = 0; i < TM; i++)
            finish(first_row + i / 4 * (BM / GROUPS_M) + thread_m + i % 4,
                   first_column + g * (BN / GROUPS_N) + thread_n, &sums[i][4 * g]);
}

// An operand in memory: a matrix of `rows` rows, `stride` floats apart. AlongK: k runs along its rows.
template <bool AlongK>
struct Matrix {
    static constexpr bool ALONG_K = AlongK;
    typedef const float *Row;
    typedef long long Step;
    const float *from;
    int rows, stride;

    __device__ __forceinline__ Row row(int r) const {
        return r < rows ? from + (AlongK ? r * (long long)stride : r) : nullptr;
    }
    __device__ __forceinline__ Step step(int k0, int i, int last) const {
        const int k = k0 + i;
        return k < last ? (AlongK ? k : k * (long long)stride) : -1;
    }
    __device__ __forceinline__ float at(Row row, Step step) const { return row && step >= 0 ? row[step] : 0.0f; }
};

// Stores sums unchanged to a row-major matrix.
struct Plain {
    float *to;
    int rows, columns;

    __device__ __forceinline__ void operator()(int row, int column, const float *sums) const {
        if (row >= rows) return;
        float *out = to + row * (long long)columns + column;
        if (columns % 4 == 0) {
            if (column < columns) store4(out, sums);
            return;
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (column + j < columns) out[j] = sums[j];
    }
};
