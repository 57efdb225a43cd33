// Row k of w begins at k * N. A warp reads 32 neighbouring weights of that row: a coalesced load.
//@ kernel: gemm
//@ block: 32, 4
//@ grid: ceil_div(N, 32), ceil_div(images, 4)
//@ without: activation, bytes
extern "C" __global__ void rows_and_columns(const float *x, const float *w, const float *bias, float *y, int images) {
    const int n = blockIdx.x * blockDim.x + threadIdx.x, image = blockIdx.y * blockDim.y + threadIdx.y;
    if (n >= N || image >= images) return;
    float sum = HAS_BIAS ? bias[n] : 0.0f;
    for (int k = 0; k < DEPTH; k++) sum += x[image * DEPTH + k] * w[k * N + n];
    y[image * N + n] = sum;
}
