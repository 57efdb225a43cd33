// The images are unrolled to a matrix in memory, so that the convolution is a product of matrices: filters times
// unrolled images. A kernel computes this product by tiles in shared memory.
//
// Data: x (images, C, H, W) INPUT; w (C, K, K, M) WEIGHT; bias (M) REAL or null; y (images, M, OH, OW) OUTPUT.
//       Workspace, row-major: unrolled (C*K*K, columns), product (M, columns), columns = images * OH * OW:
//       images are served in pieces, so that both stay small.
// Launch: conv_im2col_gemm_unroll, one thread for each channel and column, which copies one K x K window;
//         conv_im2col_gemm, TILE x TILE threads for as many elements of the product, one each;
//         conv_im2col_gemm_layout, one thread for each output element: bias, activation and layout.
//         blockIdx.x counts tiles of columns and, fastest, channels, tiles of maps, or maps.
#include "common.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
constexpr int PIXELS = OH * OW;     // per output map
constexpr int DEPTH = C * K * K;    // length of every sum
constexpr int MAP_TILES = (M + TILE - 1) / TILE;

extern "C" __global__ void conv_im2col_gemm_unroll(const INPUT *__restrict__ x, const WEIGHT *, const REAL *, OUTPUT *,
                                                   REAL *__restrict__ unrolled, REAL *, int images) {
    const long long column = blockIdx.x / C * (long long)blockDim.x + threadIdx.x, columns = (long long)images * PIXELS;
    if (column >= columns) return;
    const int c = blockIdx.x % C, pixel = column % PIXELS;
    const INPUT *window =
        x + (column / PIXELS * C + c) * (H * W) + pixel / OW * S * W + pixel % OW * S - PADDING * (W + 1);
    REAL *out = unrolled + (long long)c * K * K * columns + column;
    for (int p = 0; p < K; p++)
        for (int q = 0; q < K; q++, out += columns) {
            const int h = pixel / OW * S + p - PADDING, v = pixel % OW * S + q - PADDING;
            *out = is_pixel<PADDING>(h, v, H, W) ? REAL(window[p * W + q]) : REAL(0);
        }
}

extern "C" __global__ void __launch_bounds__(TILE * TILE)
    conv_im2col_gemm(const INPUT *, const WEIGHT *__restrict__ w, const REAL *, OUTPUT *,
                     const REAL *__restrict__ unrolled, REAL *__restrict__ product, int images) {
    __shared__ REAL filters[TILE][TILE], pixels[TILE][TILE];  // both with k as the row

    const long long columns = (long long)images * PIXELS;
    const int row = threadIdx.x / TILE, lane = threadIdx.x % TILE;
    const int map0 = blockIdx.x % MAP_TILES * TILE, m = map0 + row;
    const long long column = blockIdx.x / MAP_TILES * (long long)TILE + lane;

    REAL sum = 0;
    for (int k0 = 0; k0 < DEPTH; k0 += TILE) {
        const int k = k0 + row;
        filters[row][lane] = k < DEPTH && map0 + lane < M ? REAL(w[k * M + map0 + lane]) : REAL(0);
        pixels[row][lane] = k < DEPTH && column < columns ? unrolled[k * columns + column] : REAL(0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++) sum = fused_multiply_add(pixels[i][lane], filters[i][row], sum);
        __syncthreads();
    }
    if (m < M && column < columns) product[m * columns + column] = sum;
}

extern "C" __global__ void conv_im2col_gemm_layout(const INPUT *, const WEIGHT *, const REAL *__restrict__ bias,
                                                   OUTPUT *__restrict__ y, REAL *, const REAL *__restrict__ product,
                                                   int images) {
    const long long column = blockIdx.x / M * (long long)blockDim.x + threadIdx.x, columns = (long long)images * PIXELS;
    if (column >= columns) return;
    const int m = blockIdx.x % M;
    y[(column / PIXELS * M + m) * PIXELS + column % PIXELS] =
        OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(product[m * columns + column], HAS_BIAS ? bias[m] : REAL(0)));
}
