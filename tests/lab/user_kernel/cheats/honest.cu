// No cheat: each thread computes one output. The files beside this one differ from it in one thing.
//@ kernel: conv
//@ block: 64
//@ grid: ceil_div(images * M * OH * OW, 64)
//@ without: activation, padding, bytes
constexpr int OH = (H - K) / S + 1, OW = (W - K) / S + 1;

__device__ float honest(const float *x, const float *w, const float *bias, int at) {
    const int column = at % OW, row = at / OW % OH, m = at / (OW * OH) % M, n = at / (OW * OH * M);
    float sum = 0;
    for (int c = 0; c < C; c++)
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++)
                sum += x[((n * C + c) * H + row * S + p) * W + column * S + q] * w[((c * K + p) * K + q) * M + m];
    return HAS_BIAS ? sum + bias[m] : sum;
}

extern "C" __global__ void cheat(const float *x, const float *w, const float *bias, float *y, int images) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x, outputs = images * M * OH * OW;
    if (at >= outputs) return;
    y[at] = honest(x, w, bias, at);
}
