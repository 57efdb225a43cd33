// The last block
//
// Pooling: y[map][row][column] is the greatest of a window of WINDOW * WINDOW pixels of x[map]; windows are STRIDE
// pixels apart. x (maps, H, W) and y (maps, PH, PW) have maps = images * CHANNELS. The grid has as many blocks of 128
// threads as cover y. 128 rarely divides the size of y, so the last block has more threads than elements are left.
//
// These threads read and write beyond the arrays. Add what is missing.
//@ kernel: pool
//@ block: 128
//@ grid: ceil_div(images * CHANNELS * PH * PW, 128)
//@ without: mean, padding, ceil
extern "C" __global__ void tail(const float *x, float *y, int images) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    const int column = at % PW, row = at / PW % PH, map = at / (PW * PH);
    const float *window = x + (map * H + row * STRIDE) * W + column * STRIDE;
    float greatest = window[0];
    for (int p = 0; p < WINDOW; p++)
        for (int q = 0; q < WINDOW; q++) greatest = max(greatest, window[p * W + q]);
    y[at] = greatest;
}
