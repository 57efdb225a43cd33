// ReLU as a pass of its own, for the unfused route. One thread per element.
//
// From: lenet5 (separate ReLU kernel).
// Data: x, y (images * SIZE) REAL.
// Launch: a grid of 1-D blocks over the elements.
// Bound by: device memory, one read and one write per element.
#include "common.cuh"

extern "C" __global__ void relu_elementwise(const REAL *__restrict__ x, REAL *__restrict__ y, int images) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < (long long)images * SIZE) y[at] = relu(x[at]);
}
