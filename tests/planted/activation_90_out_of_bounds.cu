// A planted error. It writes one element behind its output (memcheck must say so).
#include "common.cuh"

extern "C" __global__ void activation_out_of_bounds(const INPUT *x, OUTPUT *y, int images) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at <= (long long)images * SIZE) y[at] = OUTPUT(1.0f);
}
