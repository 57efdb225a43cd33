// Threads beyond the last element return before they read or write.
//@ kernel: pool
//@ block: 128
//@ grid: ceil_div(images * CHANNELS * PH * PW, 128)
//@ without: mean, padding, ceil
extern "C" __global__ void tail(const float *x, float *y, int images) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= images * CHANNELS * PH * PW) return;
    const int column = at % PW, row = at / PW % PH, map = at / (PW * PH);
    const float *window = x + (map * H + row * STRIDE) * W + column * STRIDE;
    float greatest = window[0];
    for (int p = 0; p < WINDOW; p++)
        for (int q = 0; q < WINDOW; q++) greatest = max(greatest, window[p * W + q]);
    y[at] = greatest;
}
