// A tile with its border
//
// A convolution: y[n][m][row][column] = bias[m] + the sum over c, p, q of x[n][c][row + p][column + q] * w[c][p][q][m].
// A block computes TILE * TILE pixels of one map. It copies the part of a channel that they need to shared memory. The
// windows of pixels at the edge of the tile reach K - 1 pixels further, into the halo. This kernel has no halo: the
// bytes of shared memory (in the header), the side of the tile and the copy are those of TILE * TILE pixels.
//
// Give the tile its halo. It then has more pixels than the block has threads.
//@ kernel: conv
//@ TILE = 8
//@ block: TILE, TILE
//@ grid: ceil_div(OW, TILE), ceil_div(OH, TILE), images * M
//@ shared: TILE * TILE * 4
//@ without: activation, padding, stride, bytes
extern "C" __global__ void halo(const float *x, const float *w, const float *bias, float *y, int images) {
    extern __shared__ float tile[];
    constexpr int OH = H - K + 1, OW = W - K + 1, SIDE = TILE;
    const int n = blockIdx.z / M, m = blockIdx.z % M, i = threadIdx.y, j = threadIdx.x;
    const int top = blockIdx.y * TILE, left = blockIdx.x * TILE;
    float sum = 0;
    for (int c = 0; c < C; c++) {
        tile[i * SIDE + j] = top + i < H && left + j < W ? x[((n * C + c) * H + top + i) * W + left + j] : 0.0f;
        __syncthreads();
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++) sum += tile[(i + p) * SIDE + j + q] * w[((c * K + p) * K + q) * M + m];
        __syncthreads();
    }
    const int row = top + i, column = left + j;
    if (row < OH && column < OW) y[((n * M + m) * OH + row) * OW + column] = HAS_BIAS ? sum + bias[m] : sum;
}
