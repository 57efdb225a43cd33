// One barrier before the tiles are read, one before they are overwritten; every thread of the block comes to both.
//@ kernel: gemm
//@ TILE = 16
//@ block: TILE, TILE
//@ grid: ceil_div(N, TILE), ceil_div(images, TILE)
//@ without: activation, bytes
extern "C" __global__ void barriers(const float *x, const float *w, const float *bias, float *y, int images) {
    __shared__ float xs[TILE][TILE], ws[TILE][TILE];
    const int i = threadIdx.y, j = threadIdx.x, image = blockIdx.y * TILE + i, n = blockIdx.x * TILE + j;
    float sum = 0;
    for (int first = 0; first < DEPTH; first += TILE) {
        xs[i][j] = image < images && first + j < DEPTH ? x[image * DEPTH + first + j] : 0.0f;
        ws[i][j] = first + i < DEPTH && n < N ? w[(first + i) * N + n] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += xs[i][k] * ws[k][j];
        __syncthreads();
    }
    if (image < images && n < N) y[image * N + n] = HAS_BIAS ? sum + bias[n] : sum;
}
