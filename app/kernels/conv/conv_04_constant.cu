// The kernel works like `direct`, but the filters lie in constant memory, whose cache hands one value to a whole warp.
//
// Data: x (images, C, H, W) INPUT; filters (M, C, K, K) WEIGHT, packed at load and copied before each launch;
//       bias (M) REAL or null; y (images, M, OH, OW) OUTPUT. The argument w is not read.
// Launch: blockIdx.y is the output map within the slice that starts at first_map; blockIdx.x * blockDim.x +
//         threadIdx.x the output pixel over all images.
#include "common.cuh"

extern "C" {  // the braces make this a definition
__constant__ WEIGHT filters[65536 / sizeof(WEIGHT)];
}

extern "C" __global__ void conv_constant(const INPUT *x, const WEIGHT *w, const REAL *bias, OUTPUT *y, int images,
                                         int C, int H, int W, int M, int K, int S, int first_map) {
    const int OH = (H + 2 * PADDING - K) / S + 1, OW = (W + 2 * PADDING - K) / S + 1;
    const long long pixel = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long image = pixel / (OH * OW);
    if (image >= images) return;
    const int m = first_map + blockIdx.y;
    const int in_image = pixel % (OH * OW), row = in_image / OW, column = in_image % OW;

    const INPUT *window = x + image * C * H * W + row * S * W + column * S - PADDING * (W + 1);
    const int filter = blockIdx.y * C * K * K;
    REAL sum = 0;
    for (int c = 0; c < C; c++)
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++) {
                const bool inside = is_pixel<PADDING>(row * S + p - PADDING, column * S + q - PADDING, H, W);
                const REAL value = inside ? REAL(window[(c * H + p) * W + q]) : REAL(0);
                sum = fused_multiply_add(value, REAL(filters[filter + (c * K + p) * K + q]), sum);
            }

    y[(image * M + m) * OH * OW + in_image] =
        OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[m] : REAL(0)));
}
