// A planted error. It reads its output, which nothing has written (initcheck must say so).
#include "common.cuh"

extern "C" __global__ void activation_uninitialised(const INPUT *x, OUTPUT *y, int images) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < (long long)images * SIZE) y[at] = OUTPUT(REAL(y[at]) + REAL(x[at]));
}
