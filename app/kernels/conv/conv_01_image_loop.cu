// One thread computes the same output element of every image, one image after the other: the grid covers the outputs
// of one image.
//
// Data: x (images, C, H, W) INPUT; w (C, K, K, M) WEIGHT; bias (M) REAL or null; y (images, M, OH, OW) OUTPUT.
// Launch: blockIdx.y is the output map; blockIdx.x * blockDim.x + threadIdx.x the output pixel.
#include "common.cuh"

extern "C" __global__ void conv_image_loop(const INPUT *x, const WEIGHT *w, const REAL *bias, OUTPUT *y, int images,
                                           int C, int H, int W, int M, int K, int S) {
    const int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
    const int pixel = blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= OH * OW) return;
    const int m = blockIdx.y;
    const int row = pixel / OW, column = pixel % OW;

    for (long long image = 0; image < images; image++) {
        const INPUT *window = x + image * C * H * W + row * S * W + column * S - PADDING * (W + 1);
        REAL sum = 0;
        for (int c = 0; c < C; c++)
            for (int p = 0; p < K; p++)
                for (int q = 0; q < K; q++) {
                    const bool inside = is_pixel<PADDING>(row * S + p - PADDING, column * S + q - PADDING, H, W);
                    const REAL value = inside ? REAL(window[(c * H + p) * W + q]) : REAL(0);
                    sum = fused_multiply_add(value, REAL(w[((c * K + p) * K + q) * M + m]), sum);
                }

        y[(image * M + m) * OH * OW + pixel] =
            OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[m] : REAL(0)));
    }
}
