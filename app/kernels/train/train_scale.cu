// Converts bytes to float32, times SCALE: the input of the first layer after images were enlarged as bytes.
//
// From: fa19, k7, minidnn86 (which read float32 files).
// Data: x (images, SIZE) bytes, y (images, SIZE) float32.
// Launch: a grid of 1-D blocks over the elements.
// Bound by: device memory.
#include "common.cuh"

extern "C" __global__ void train_scale(const uint8 *__restrict__ x, float32 *__restrict__ y, int images) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < (long long)images * SIZE) y[at] = float(x[at]) * float(SCALE);
}
