// An activation that is not fused into another kernel. One thread per element.
//
// From: lenet5 (separate ReLU kernel), mlp (sigmoid), fa19 (tanh).
// Data: x (images * SIZE) INPUT; y (images * SIZE) OUTPUT.
// Launch: a grid of 1-D blocks over the elements.
// Bound by: device memory, one read and one write per element.
#include "common.cuh"

extern "C" __global__ void activation_elementwise(const INPUT *__restrict__ x, OUTPUT *__restrict__ y, int images) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < (long long)images * SIZE) y[at] = OUTPUT(ACTIVATION::of(REAL(x[at])));
}
