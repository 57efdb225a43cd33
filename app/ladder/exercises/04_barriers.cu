// Wait for each other
//
// A block computes TILE * TILE elements of y = x w + bias. In each step every thread copies one element of x and one of
// w to tiles in shared memory, and then all threads read both tiles. Beyond the edges the tiles have zeros.
//
// The warps of a block run in any order. Here no thread waits until the others have written the tiles, and none waits
// until the others have read what it overwrites in the next step. Add what is missing, in two places. On a card such a
// race may go well by chance; on the processor (check with --device cpu) it is always found.
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
        for (int k = 0; k < TILE; k++) sum += xs[i][k] * ws[k][j];
    }
    if (image < images && n < N) y[image * N + n] = HAS_BIAS ? sum + bias[n] : sum;
}
