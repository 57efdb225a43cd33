// Four numbers in one load
//
// One instruction loads a float4, which is four floats: a quarter of the instructions. The address must be a multiple
// of 16 bytes. x begins at such an address, but a row has DEPTH floats, so most rows begin elsewhere; and the number of
// floats after the first such address of a row need not be a multiple of four.
//
// This kernel loads four floats at any address. Keep the float4 loads for the middle of a row, and load one float at a
// time before the first such address and after the last four.
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
    for (int k = 0; k < DEPTH; k += 4) {
        const float4 four = *(const float4 *)(row + k);
        sum += four.x * w[k * N + n] + four.y * w[(k + 1) * N + n];
        sum += four.z * w[(k + 2) * N + n] + four.w * w[(k + 3) * N + n];
    }
    y[at] = HAS_BIAS ? sum + bias[n] : sum;
}
