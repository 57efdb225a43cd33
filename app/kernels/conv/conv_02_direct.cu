// One thread computes one output element; images are spread over the grid.
//
// Data: x (images, C, H, W) INPUT; w (C, K, K, M) WEIGHT; bias (M) REAL or null; y (images, M, OH, OW) OUTPUT.
// Launch: blockIdx.y is the output map; blockIdx.x * blockDim.x + threadIdx.x the output pixel over all images.
//         A warp therefore shares its filter taps (broadcast) and reads and writes neighbouring pixels.
// Compiled with WEIGHT, REAL and OUTPUT = float64 it is the oracle on the card.
#include "common.cuh"

extern "C" __global__ void conv_direct(const INPUT *x, const WEIGHT *w, const REAL *bias, OUTPUT *y, int images,
                                       int C, int H, int W, int M, int K, int S) {
    const int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
    const long long pixel = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long image = pixel / (OH * OW);
    if (image >= images) return;
    const int m = blockIdx.y;
    const int in_image = pixel % (OH * OW), row = in_image / OW, column = in_image % OW;

    const INPUT *window = x + image * C * H * W + row * S * W + column * S - PADDING * (W + 1);
    REAL sum = 0;
    for (int c = 0; c < C; c++)
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++) {
                const bool inside = is_pixel<PADDING>(row * S + p - PADDING, column * S + q - PADDING, H, W);
                const REAL value = inside ? REAL(window[(c * H + p) * W + q]) : REAL(0);
                sum = fused_multiply_add(value, REAL(w[((c * K + p) * K + q) * M + m]), sum);
            }

    y[(image * M + m) * OH * OW + in_image] =
        OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[m] : REAL(0)));
}
