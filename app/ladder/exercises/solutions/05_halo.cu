// The tile's side is TILE + K - 1, and each thread brings every pixel that lies a multiple of TILE from its own.
//@ kernel: conv
//@ TILE = 8
//@ block: TILE, TILE
//@ grid: ceil_div(OW, TILE), ceil_div(OH, TILE), images * M
//@ shared: (TILE + K - 1) ** 2 * 4
//@ without: activation, padding, stride, bytes
extern "C" __global__ void halo(const float *x, const float *w, const float *bias, float *y, int images) {
    extern __shared__ float tile[];
    constexpr int OH = H - K + 1, OW = W - K + 1, SIDE = TILE + K - 1;
    const int n = blockIdx.z / M, m = blockIdx.z % M, i = threadIdx.y, j = threadIdx.x;
    const int top = blockIdx.y * TILE, left = blockIdx.x * TILE;
    float sum = 0;
    for (int c = 0; c < C; c++) {
        for (int r = i; r < SIDE; r += TILE)
            for (int s = j; s < SIDE; s += TILE) {
                const bool inside = top + r < H && left + s < W;
                tile[r * SIDE + s] = inside ? x[((n * C + c) * H + top + r) * W + left + s] : 0.0f;
            }
        __syncthreads();
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++) sum += tile[(i + p) * SIDE + j + q] * w[((c * K + p) * K + q) * M + m];
        __syncthreads();
    }
    const int row = top + i, column = left + j;
    if (row < OH && column < OW) y[((n * M + m) * OH + row) * OW + column] = HAS_BIAS ? sum + bias[m] : sum;
}
