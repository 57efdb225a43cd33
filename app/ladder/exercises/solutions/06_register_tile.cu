// Six loads for eight multiply-adds. Zeros stand in for what lies beyond the edges.
//@ kernel: gemm
//@ ROWS = 2
//@ COLUMNS = 4
//@ block: 8, 8
//@ grid: ceil_div(N, 8 * COLUMNS), ceil_div(images, 8 * ROWS)
//@ without: activation, bytes
extern "C" __global__ void register_tile(const float *x, const float *w, const float *bias, float *y, int images) {
    const int image = (blockIdx.y * 8 + threadIdx.y) * ROWS, n = (blockIdx.x * 8 + threadIdx.x) * COLUMNS;
    float sums[ROWS][COLUMNS] = {};
    for (int k = 0; k < DEPTH; k++) {
        float a[ROWS], b[COLUMNS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) a[i] = image + i < images ? x[(image + i) * DEPTH + k] : 0.0f;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) b[j] = n + j < N ? w[k * N + n + j] : 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) sums[i][j] += a[i] * b[j];
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            if (image + i < images && n + j < N)
                y[(image + i) * N + n + j] = HAS_BIAS ? sums[i][j] + bias[n + j] : sums[i][j];
}
