// An im2col kernel writes the unrolled images to memory, cuBLAS multiplies the filters by them, and a last kernel
// copies the product to the output y.
//
// Data: x (images, C, H, W) INPUT; w (M, C*K*K) float, transposed when loaded; bias (M) or null; y (images, M, OH, OW)
//       OUTPUT. Workspace, row-major: unrolled (C*K*K, columns), product (M, columns), columns = images * OH * OW:
//       images are served in pieces, so that both stay small.
// Launch: conv_cublas_im2col, one thread for each channel and column, which copies one K x K window; product =
//         w unrolled by cuBLAS; conv_cublas, one thread for each output element: bias, activation and layout.
//         blockIdx.x counts tiles of columns and, fastest, channels or maps.
#include "common.cuh"

constexpr int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
constexpr int PIXELS = OH * OW;  // per output map

extern "C" __global__ void conv_cublas_im2col(const INPUT *__restrict__ x, const float *, const float *, OUTPUT *,
                                              float *__restrict__ unrolled, float *, int images) {
    const long long column = blockIdx.x / C * (long long)blockDim.x + threadIdx.x, columns = (long long)images * PIXELS;
    if (column >= columns) return;
    const int c = blockIdx.x % C, pixel = column % PIXELS;
    const INPUT *window =
        x + (column / PIXELS * C + c) * (H * W) + pixel / OW * S * W + pixel % OW * S - PADDING * (W + 1);
    float *out = unrolled + (long long)c * K * K * columns + column;
    for (int p = 0; p < K; p++)
        for (int q = 0; q < K; q++, out += columns) {
            const int h = pixel / OW * S + p - PADDING, v = pixel % OW * S + q - PADDING;
            *out = is_pixel<PADDING>(h, v, H, W) ? float(window[p * W + q]) : 0.0f;
        }
}

extern "C" __global__ void conv_cublas(const INPUT *, const float *, const float *__restrict__ bias,
                                       OUTPUT *__restrict__ y, float *, const float *__restrict__ product,
                                       int images) {
    const long long column = blockIdx.x / M * (long long)blockDim.x + threadIdx.x, columns = (long long)images * PIXELS;
    if (column >= columns) return;
    const int m = blockIdx.x % M;
    y[(column / PIXELS * M + m) * PIXELS + column % PIXELS] =
        OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(product[m * columns + column], HAS_BIAS ? bias[m] : 0.0f));
}
