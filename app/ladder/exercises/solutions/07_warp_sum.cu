// After the first step lanes 0 to 15 have the sums of two lanes, after the fifth lane 0 has the sum of all.
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
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_down_sync(0xFFFFFFFF, sum, apart);
    if (lane == 0) y[at] = HAS_BIAS ? sum + bias[n] : sum;
}
