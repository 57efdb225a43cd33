// A planted error. A warp reads what another writes, with no barrier between (racecheck must say so).
#include "common.cuh"

extern "C" __global__ void activation_race(const INPUT *x, OUTPUT *y, int images) {
    __shared__ float values[256];
    values[threadIdx.x] = threadIdx.x;
    const float other = values[255 - threadIdx.x];
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < (long long)images * SIZE) y[at] = OUTPUT(other);
}
