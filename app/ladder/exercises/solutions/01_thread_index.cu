// Thread 0 of block 0 has element 0: nothing is added to the number of the thread.
//@ kernel: gemm
//@ block: 64
//@ grid: ceil_div(images * N, 64)
//@ without: activation, bytes
extern "C" __global__ void thread_index(const float *x, const float *w, const float *bias, float *y, int images) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= images * N) return;
    const int image = at / N, n = at % N;
    float sum = 0;
    for (int k = 0; k < DEPTH; k++) sum += x[image * DEPTH + k] * w[k * N + n];
    y[at] = HAS_BIAS ? sum + bias[n] : sum;
}
