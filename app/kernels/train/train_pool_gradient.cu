// The gradient of pooling and of the activation before it. Each input pixel adds the gradients of the windows that
// contain it, in the order of app/training/gradients.py: windows may overlap, and no two threads write to one element.
//
// From: lenet5, fa19, minidnn86 (which had only the forward pass).
// Data: x, dx (maps, H, W), y, dy (maps, PH, PW) float32, maps = images * CHANNELS. The maximum takes all of its
//       window's gradient, the first among equals by rows. Windows may reach over the border.
// Launch: a grid of 1-D blocks over the pixels of x.
// Bound by: device memory: x is read and dx written once; y, dy and other pixels of a window come from caches.
#include "pool_window.cuh"

// Whether pixel (p, q) of the window is the first that equals its maximum.
__device__ __forceinline__ bool is_first(const float *window, float most, int p, int q, const WindowExtent &extent) {
    if (window[p * W + q] != most) return false;
    for (int before = 0; before < p * WINDOW + q; before++)
        if (extent.has(before / WINDOW, before % WINDOW) && window[before / WINDOW * W + before % WINDOW] == most)
            return false;
    return true;
}

extern "C" __global__ void train_pool_gradient(const float *__restrict__ x, const float *__restrict__ y,
                                               const float *__restrict__ dy, float *__restrict__ dx, int images) {
    const long long start = blockIdx.x * (long long)blockDim.x;
    const int offset = int(start % (H * W)) + threadIdx.x;  // 64-bit divisions only once per block
    const long long map = start / (H * W) + offset / (H * W);
    if (map >= (long long)images * CHANNELS) return;
    const int row = offset % (H * W) / W, column = offset % W;
    x += map * (H * W), y += map * (PH * PW), dy += map * (PH * PW);

    // Window i begins at pixel i * STRIDE of the padded image: the last that holds this one, and the first after those
    // that end before it.
    const int padded_row = row + PADDING, padded_column = column + PADDING;
    const int last_i = min(padded_row / STRIDE, PH - 1), last_j = min(padded_column / STRIDE, PW - 1);
    const int first_i = padded_row < WINDOW ? 0 : (padded_row - WINDOW) / STRIDE + 1;
    const int first_j = padded_column < WINDOW ? 0 : (padded_column - WINDOW) / STRIDE + 1;
    float sum = 0;
    for (int i = last_i; i >= first_i; i--)
        for (int j = last_j; j >= first_j; j--) {
            const float slope = dy[i * PW + j];
            const WindowExtent extent(i, j);
            if (IS_MAX) {
                const int p = padded_row - i * STRIDE, q = padded_column - j * STRIDE;
                const bool own = is_first(x + (row - p) * W + column - q, y[i * PW + j], p, q, extent);
                sum = __fadd_rn(sum, slope * (own ? 1.0f : 0.0f));
            } else {
                sum += slope / float(extent.count);
            }
        }
    dx[map * (H * W) + row * W + column] = ACTIVATION::times_slope(sum, x[row * W + column]);
}
