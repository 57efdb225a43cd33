// Pooling, average or maximum, over any window, stride and padding. One thread computes one output element.
//
// From: lenet5, minidnn86 (a separate pass after the convolution).
// Data: x (maps, H, W) INPUT, maps = images * channels; y (maps, PH, PW) OUTPUT. Rows and columns that do not fill
//       a window are dropped, or PH and PW count windows over the border, which pool their pixels inside the image.
//       The first windows begin PADDING rows and columns before the image. A mean counts COUNTED of the padding.
// Launch: a grid of 1-D blocks over the maps * PH * PW outputs.
// Bound by: device memory; each element is read once where windows do not overlap, so shared memory cannot help.
#include "pool_window.cuh"

extern "C" __global__ void pool_direct(const INPUT *__restrict__ x, OUTPUT *__restrict__ y, int images) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at >= (long long)images * CHANNELS * PH * PW) return;
    const int column = at % PW, row = at / PW % PH;
    const INPUT *window = x + at / (PH * PW) * (H * W) + (row * STRIDE - PADDING) * W + column * STRIDE - PADDING;
    const WindowExtent extent(row, column);
    REAL result = window[extent.top * W + extent.left];
#pragma unroll
    for (int i = 0; i < WINDOW * WINDOW; i++)
        if (extent.has_another(i / WINDOW, i % WINDOW))
            result = pool_step<IS_MAX>(result, REAL(window[i / WINDOW * W + i % WINDOW]));
    y[at] = OUTPUT(pool_finish<IS_MAX>(result, extent.count));
}
