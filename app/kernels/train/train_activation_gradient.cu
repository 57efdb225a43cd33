// The gradient of an activation, in place: dy times the slope, which is computed from the output y; y (1 - y) for the
// sigmoid.
//
// From: mlp (there a vector of a (1 - a) first, then a product).
// Data: y, dy (images, SIZE) float32.
// Launch: a grid of 1-D blocks over the elements.
// Bound by: device memory: two reads and a write per element.
#include "common.cuh"

extern "C" __global__ void train_activation_gradient(const float *__restrict__ y, float *__restrict__ dy, int images) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < (long long)images * SIZE) dy[at] = ACTIVATION::times_slope(dy[at], y[at]);
}
