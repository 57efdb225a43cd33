// Rows and columns
//
// The layer of exercise 1 again: w is (DEPTH, N), row by row, so the weights of one k are neighbours. This kernel reads
// w as if it were (N, DEPTH). No index leaves the array, but the results are wrong.
//
// Mend the index. Then compare both ways of reading w. The 32 threads of a warp have neighbouring n. In which way do
// they read 32 neighbouring words, a coalesced load, and in which way words that are DEPTH apart?
//@ kernel: gemm
//@ block: 32, 4
//@ grid: ceil_div(N, 32), ceil_div(images, 4)
//@ without: activation, bytes
extern "C" __global__ void rows_and_columns(const float *x, const float *w, const float *bias, float *y, int images) {
    const int n = blockIdx.x * blockDim.x + threadIdx.x, image = blockIdx.y * blockDim.y + threadIdx.y;
    if (n >= N || image >= images) return;
    float sum = HAS_BIAS ? bias[n] : 0.0f;
    for (int k = 0; k < DEPTH; k++) sum += x[image * DEPTH + k] * w[n * DEPTH + k];
    y[image * N + n] = sum;
}
