// Which thread computes what
//
// A fully connected layer: y[image][n] = bias[n] + the sum over k of x[image][k] * w[k][n]. The arrays are x (images,
// DEPTH), w (DEPTH, N), bias (N) and y (images, N), row by row. The launch has blocks of 64 threads, and each thread
// computes one element of y. Number the threads over all blocks 0, 1, 2, …: thread i computes element i.
//
// One line is wrong. Mend it. (Lines that begin with //@ describe the launch.)
//@ kernel: gemm
//@ block: 64
//@ grid: ceil_div(images * N, 64)
//@ without: activation, bytes
extern "C" __global__ void thread_index(const float *x, const float *w, const float *bias, float *y, int images) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x + 1;
    if (at >= images * N) return;
    const int image = at / N, n = at % N;
    float sum = 0;
    for (int k = 0; k < DEPTH; k++) sum += x[image * DEPTH + k] * w[k * N + n];
    y[at] = HAS_BIAS ? sum + bias[n] : sum;
}
