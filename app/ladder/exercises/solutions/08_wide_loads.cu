// Three loops: up to an address that is a multiple of 16, four by four, and what is left.
//@ kernel: gemm
//@ block: 64
//@ grid: ceil_div(images * N, 64)
//@ without: activation, bytes
extern "C" __global__ void wide_loads(const float *x, const float *w, const float *bias, float *y, int images) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= images * N) return;
    const int n = at % N;
    const float *row = x + at / N * DEPTH;
    float sum = 0;
    int k = 0;
    for (; k < DEPTH && (size_t)(row + k) % 16 != 0; k++) sum += row[k] * w[k * N + n];
    for (; k + 4 <= DEPTH; k += 4) {
        const float4 four = *(const float4 *)(row + k);
        sum += four.x * w[k * N + n] + four.y * w[(k + 1) * N + n];
        sum += four.z * w[(k + 2) * N + n] + four.w * w[(k + 3) * N + n];
    }
    for (; k < DEPTH; k++) sum += row[k] * w[k * N + n];
    y[at] = HAS_BIAS ? sum + bias[n] : sum;
}
