// A sum over a warp
//
// With few images there are too few results to give every thread of a card one. Here a warp of 32 threads computes one
// result of the layer of exercise 1. Its thread i, called lane i, sums the terms i, i + 32, i + 64, … The sum is then
// in 32 parts, each in a register of another lane. The kernel stores the part of lane 0.
//
// Add all parts, without shared memory: __shfl_down_sync(0xFFFFFFFF, value, apart) returns the value of the lane whose
// number is higher by apart. Five steps are enough.
//@ kernel: gemm
//@ WARPS = 4
//@ block: 32, WARPS
//@ grid: ceil_div(images * N, WARPS)
//@ without: activation, bytes
extern "C" __global__ void warp_sum(const float *x, const float *w, const float *bias, float *y, int images) {
    const int at = blockIdx.x * WARPS + threadIdx.y, lane = threadIdx.x;
    if (at >= images * N) return;  // the whole warp: all of its lanes have the same element
    const int image = at / N, n = at % N;
    float sum = 0;
    for (int k = lane; k < DEPTH; k += 32) sum += x[image * DEPTH + k] * w[k * N + n];
    // add the sums of the other lanes
    if (lane == 0) y[at] = HAS_BIAS ? sum + bias[n] : sum;
}
