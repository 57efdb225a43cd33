// One convolution, of any sizes, of an image in shared memory by mma: for kernels that compute two, one after the
// other.
#pragma once
#include "mma.cuh"
#include "common.cuh"

// The image as pairs of neighbouring pixels in float16, with a border of zeros.
constexpr int PAIR_ROWS = H1 + 2 * P1, PAIR_PITCH = W1 + 2 * P1, PAIR_PLANE = PAIR_ROWS * PAIR_PITCH;
constexpr int PAIRS = C1 * PAIR_PLANE + 8;  // windows of eight pixels may end beyond the last row
// The first convolution's maps as words of two maps, with a border of zeros. If whole k steps fit in a pixel's words,
// these are padded so that eight pixels are in different banks.
constexpr int MAP_WORDS = (M1 + 1) / 2, APART2 = POOL2 > 1 ? POOL2 * S2 : S2;  // pixels from one value to the next
constexpr bool WHOLE = MAP_WORDS % 8 == 0;
constexpr int PIXEL_WORDS = WHOLE ? MAP_WORDS + (APART2 % 2 ? 4 : APART2 % 4 ? 2 : 1) : MAP_WORDS;
constexpr int MAP_PITCH = (PW1 + 2 * P2) * PIXEL_WORDS, MAP_END = (PH1 + 2 * P2) * MAP_PITCH;

__device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__device__ constexpr int least(int a, int b) { return a < b ? a : b; }

constexpr int SLOTS1 = C1 * K1, STEPS1 = ceil_div(SLOTS1, 2), COLUMNS1 = ceil_div(M1, 8);
constexpr int ROW_STEPS2 = ceil_div(K2 * MAP_WORDS, 8), STEPS2 = K2 * ROW_STEPS2, COLUMNS2 = ceil_div(M2, 8);
constexpr int FILTERS1 = STEPS1 * COLUMNS1 * 32, FILTERS2 = STEPS2 * COLUMNS2 * 32;  // uint2, per part

// The sizes of one convolution. A tile is 16 rows of a product: 16 values without pooling, or two pixels of the windows
// of eight pooled values.
struct First {
    static constexpr int OH = (H1 + 2 * P1 - K1) / S1 + 1, OW = (W1 + 2 * P1 - K1) / S1 + 1, PH = PH1, PW = PW1, S = S1;
    static constexpr int POOL = POOL1, POOL_STEP = POOL1, MAPS = M1, COLUMNS = COLUMNS1, FILTER_ROWS = 1, STEPS = STEPS1;
    static constexpr bool MAX = MAX1, BIAS = HAS_BIAS1, SPLIT_X = false, SCALED = SCALED1;
    typedef ACT1 Activation;
    static constexpr bool IN_TURN = false;
    static __device__ __forceinline__ int place(int row, int column) { return row * S * PAIR_PITCH + column * S; }
    static __device__ constexpr int slot(int number) {
        return number < SLOTS1 ? number / K1 * PAIR_PLANE + number % K1 * PAIR_PITCH : 0;
    }
    static __device__ __forceinline__ int low(int, int step, int t) { return slot(2 * step) + 2 * t; }
    static __device__ __forceinline__ int high(int, int step, int t) { return slot(2 * step + 1) + 2 * t; }
};
struct Second {
    static constexpr int IH = PH1 + 2 * P2, IW = PW1 + 2 * P2;
    static constexpr int OH = (IH - K2) / S2 + 1, OW = (IW - K2) / S2 + 1, PH = PH2, PW = PW2, S = S2;
    static constexpr int POOL = POOL2, POOL_STEP = POOL2, MAPS = M2, COLUMNS = COLUMNS2, FILTER_ROWS = K2, STEPS = ROW_STEPS2;
    static constexpr bool MAX = MAX2, BIAS = HAS_BIAS2, SPLIT_X = PARTS == 2, SCALED = false;
    typedef ACT2 Activation;
    static __device__ __forceinline__ int place(int row, int column) { return row * S * MAP_PITCH + column * S * PIXEL_WORDS; }
    static __device__ __forceinline__ int low(int row, int step, int t) {
        return row * MAP_PITCH + 8 * step + (WHOLE ? 8 * step / MAP_WORDS * (PIXEL_WORDS - MAP_WORDS) : 0) + t;
    }
    // Whether pixels alternate between rows g and g + 8, where that keeps them in different banks.
    static constexpr bool IN_TURN = PIXEL_WORDS * S2 % 8 != 4 && PIXEL_WORDS * S2 * 2 % 8 == 4;
    static __device__ __forceinline__ int high(int row, int step, int t) { return low(row, step, t) + 4; }
};

template <typename L>
struct Shape {
    static constexpr int WINDOW = L::POOL * L::POOL, TILES = L::POOL > 1 ? (WINDOW + 1) / 2 : 1;  // per group of values
    static constexpr int VALUES = L::POOL > 1 ? 8 : 16;                                             // of a group
    static constexpr int GROUPS = ceil_div(L::PH * L::PW, VALUES);
    static constexpr int NB = least(L::COLUMNS, 8);                               // columns of maps at a time
    static constexpr int MOST = (L::SPLIT_X ? 8 : 16) / NB;                       // tiles at a time that registers hold
    static constexpr int TOGETHER = least(MOST < 1 ? 1 : MOST, 4);
    static constexpr int MT = least(TILES, TOGETHER), GT = TOGETHER / MT;         // tiles of a group, groups
    static constexpr bool INCOMPLETE = (L::PH - 1) * L::POOL_STEP + L::POOL > L::OH || (L::PW - 1) * L::POOL_STEP + L::POOL > L::OW;
    static __device__ __forceinline__ int value(int group, int g, int side) {
        return L::POOL > 1 ? group * 8 + g : group * 16 + (L::IN_TURN ? 2 * g + side : g + 8 * side);
    }
    // Whether a half tile's pixel belongs to its window and to the image.
    static __device__ __forceinline__ bool counts(int value, int pixel) {
        return pixel < WINDOW && (!INCOMPLETE || (value / L::PW * L::POOL_STEP + pixel / L::POOL < L::OH &&
                                                  value % L::PW * L::POOL_STEP + pixel % L::POOL < L::OW));
    }
};

constexpr int CUT_STEPS = 8;  // most k steps that the tensor cores sum, because they truncate

// A range of groups of values, begin and end being multiples of GT.
struct Groups {
    int begin, end;
};

// Computes a convolution of the image in shared memory, or some groups of its values, by Warps warps, of which this is
// number ``warp``. store(value number, map, a, b) gets the results of two neighbouring maps.
template <typename L, int Warps, typename Store>
__device__ __forceinline__ void convolve(int warp, const half2 *x, const half2 *x_low, const uint2 *filters,
                                         const float *factors, const float *bias, Store store,
                                         Groups groups = {0, Shape<L>::GROUPS}) {
    typedef Shape<L> H;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    constexpr int PART = L::FILTER_ROWS * L::STEPS * L::COLUMNS * 32;
    for (int first = groups.begin + warp * H::GT; first < groups.end; first += Warps * H::GT) {
#pragma unroll 1
        for (int nb0 = 0; nb0 < L::COLUMNS; nb0 += H::NB) {
            constexpr int EVEN = (L::MAPS + 1) / 2 * 2;  // factors and biases are padded to it
            float f[H::NB][2], c[H::NB][2], scale[H::NB][2];
#pragma unroll
            for (int n = 0; n < H::NB; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int map = min((nb0 + n) * 8 + 2 * t + j, EVEN - 1);
                    f[n][j] = factors[map];
                    c[n][j] = L::BIAS ? bias[map] : 0.0f;
                    scale[n][j] = L::SCALED ? factors[EVEN + map] : 1.0f;
                }
            auto activated = [&](int n, int j, float sum) {
                const float value = activate<typename L::Activation, PARTS == 1>(L::BIAS ? fmaf(sum, f[n][j], c[n][j]) : sum * f[n][j]);
                return L::SCALED ? value * scale[n][j] : value;
            };
            // The greatest sum gives the greatest value, because factors are positive and activations monotone.
            auto finish = [&](int value, int n, float a, float b, int count) {
                const int map = (nb0 + n) * 8 + 2 * t;
                if (map >= L::MAPS) return;
                if (L::POOL == 1 || L::MAX) store(value, map, activated(n, 0, a), activated(n, 1, b));
                else store(value, map, a / count, b / count);
            };
            float best[H::GT][H::NB][2];
            int counted[H::GT];
#pragma unroll
            for (int i = 0; i < H::GT; i++) {
                counted[i] = 0;
#pragma unroll
                for (int n = 0; n < H::NB; n++) best[i][n][0] = best[i][n][1] = L::MAX ? __int_as_float(0xff800000) : 0.0f;
            }
#pragma unroll 1
            for (int tile0 = 0; tile0 < H::TILES; tile0 += H::MT) {
                // Values beyond the last repeat it. In a full window all pixels are at fixed distances from the first.
                int left[H::GT * H::MT], right[H::GT * H::MT];
#pragma unroll
                for (int i = 0; i < H::GT * H::MT; i++)
#pragma unroll
                    for (int side = 0; side < 2; side++) {
                        const int value = min(H::value(first + i / H::MT, g, side), L::PH * L::PW - 1);
                        const int pixel = L::POOL > 1 ? min(2 * (tile0 + i % H::MT) + side, H::WINDOW - 1) : 0;
                        int down = pixel / L::POOL, across = pixel % L::POOL;
                        const int row = value / L::PW * L::POOL_STEP, column = value % L::PW * L::POOL_STEP;
                        if (H::INCOMPLETE) down = min(down, L::OH - 1 - row), across = min(across, L::OW - 1 - column);
                        (side ? right : left)[i] = L::place(row, column) + L::place(down, across);
                    }
                float sums[H::GT * H::MT][H::NB][4] = {};
#pragma unroll 1
                for (int filter_row = 0; filter_row < L::FILTER_ROWS; filter_row++) {
                    float partial[H::GT * H::MT][H::NB][4] = {};
                    float(&into)[H::GT * H::MT][H::NB][4] = L::SPLIT_X ? partial : sums;
#pragma unroll
                    for (int step = 0; step < L::STEPS; step++) {
                        uint2 b[H::NB], b_low[H::NB];
                        const uint2 *own = filters + ((filter_row * L::STEPS + step) * L::COLUMNS + nb0) * 32 + lane;
#pragma unroll
                        for (int n = 0; n < H::NB; n++) {
                            if (L::COLUMNS % H::NB && nb0 + n >= L::COLUMNS) continue;
                            b[n] = own[n * 32];
                            if (WEIGHT_PARTS == 2) b_low[n] = own[PART + n * 32];
                        }
                        const int low = L::low(filter_row, step, t), high = L::high(filter_row, step, t);
#pragma unroll
                        for (int i = 0; i < H::GT * H::MT; i++) {
                            const unsigned a[4] = {x[left[i] + low], x[right[i] + low], x[left[i] + high], x[right[i] + high]};
                            unsigned a_low[4];
                            if (L::SPLIT_X) {
                                a_low[0] = x_low[left[i] + low], a_low[1] = x_low[right[i] + low];
                                a_low[2] = x_low[left[i] + high], a_low[3] = x_low[right[i] + high];
                            }
#pragma unroll
                            for (int n = 0; n < H::NB; n++) {
                                if (L::COLUMNS % H::NB && nb0 + n >= L::COLUMNS) continue;
                                const unsigned w[2] = {b[n].x, b[n].y};
                                if (L::SPLIT_X) mma_f16(into[i][n], a_low, w);
                                if (WEIGHT_PARTS == 2) {
                                    const unsigned w_low[2] = {b_low[n].x, b_low[n].y};
                                    mma_f16(into[i][n], a, w_low);
                                }
                                mma_f16(into[i][n], a, w);
                            }
                        }
                        if (!L::SPLIT_X || ((step + 1) % CUT_STEPS && step + 1 < L::STEPS)) continue;
#pragma unroll
                        for (int i = 0; i < H::GT * H::MT; i++)
#pragma unroll
                            for (int n = 0; n < H::NB; n++)
#pragma unroll
                                for (int j = 0; j < 4; j++) sums[i][n][j] += partial[i][n][j], partial[i][n][j] = 0.0f;
                    }
                }
                if (L::POOL == 1) {
#pragma unroll
                    for (int i = 0; i < H::GT; i++)
#pragma unroll
                        for (int side = 0; side < 2; side++) {
                            const int value = H::value(first + i, g, side);
                            if (value < L::PH * L::PW)
#pragma unroll
                                for (int n = 0; n < H::NB; n++)
                                    finish(value, n, sums[i][n][2 * side], sums[i][n][2 * side + 1], 1);
                        }
                } else {
#pragma unroll
                    for (int i = 0; i < H::GT * H::MT; i++)
#pragma unroll
                        for (int side = 0; side < 2; side++) {
                            if (!H::counts(H::value(first + i / H::MT, g, side), 2 * (tile0 + i % H::MT) + side)) continue;
                            counted[i / H::MT]++;
#pragma unroll
                            for (int n = 0; n < H::NB; n++)
#pragma unroll
                                for (int j = 0; j < 2; j++) {
                                    float &so_far = best[i / H::MT][n][j];
                                    const float sum = sums[i][n][2 * side + j];
                                    if (L::MAX) so_far = greater(so_far, sum);
                                    else so_far += activated(n, j, sum);
                                }
                        }
                }
            }
            if (L::POOL > 1)
#pragma unroll
                for (int i = 0; i < H::GT; i++) {
                    const int value = (first + i) * 8 + g;
                    if (value < L::PH * L::PW)
#pragma unroll
                        for (int n = 0; n < H::NB; n++) finish(value, n, best[i][n][0], best[i][n][1], counted[i]);
                }
        }
    }
}
