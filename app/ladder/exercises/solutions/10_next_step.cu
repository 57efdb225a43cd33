// One of many: a thread computes 2 neighbouring pixels of 4 maps, so that 6 loads serve 8 multiply-adds.
//@ kernel: conv
//@ PIXELS = 2
//@ MAPS = 4
//@ block: 128
//@ grid: ceil_div(images * OH * ceil_div(OW, PIXELS), 128), ceil_div(M, MAPS)
//@ without: activation, padding, bytes
extern "C" __global__ void next_step(const float *x, const float *w, const float *bias, float *y, int images) {
    constexpr int OH = (H - K) / S + 1, OW = (W - K) / S + 1, ACROSS = (OW + PIXELS - 1) / PIXELS;
    const int at = blockIdx.x * blockDim.x + threadIdx.x, first_map = blockIdx.y * MAPS;
    const int column = at % ACROSS * PIXELS, row = at / ACROSS % OH, n = at / (ACROSS * OH);
    if (n >= images) return;
    float sums[PIXELS][MAPS] = {};
    for (int c = 0; c < C; c++)
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++) {
                const float *pixel = x + ((n * C + c) * H + row * S + p) * W + column * S + q;
                const float *taps = w + ((c * K + p) * K + q) * M + first_map;
                float pixels[PIXELS];
#pragma unroll
                for (int i = 0; i < PIXELS; i++) pixels[i] = column + i < OW ? pixel[i * S] : 0.0f;
#pragma unroll
                for (int j = 0; j < MAPS; j++) {
                    const float tap = first_map + j < M ? taps[j] : 0.0f;
#pragma unroll
                    for (int i = 0; i < PIXELS; i++) sums[i][j] += pixels[i] * tap;
                }
            }
#pragma unroll
    for (int j = 0; j < MAPS; j++)
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {
            const int m = first_map + j;
            if (m < M && column + i < OW)
                y[((n * M + m) * OH + row) * OW + column + i] = HAS_BIAS ? sums[i][j] + bias[m] : sums[i][j];
        }
}
