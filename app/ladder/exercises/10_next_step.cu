// Write the next step
//
// The convolution of exercise 5, with stride S: y[n][m][row][column] = bias[m] + the sum over c, p, q of
// x[n][c][row * S + p][column * S + q] * w[c][p][q][m]. x (images, C, H, W), w (C, K, K, M), y (images, M, OH, OW).
//
// The function is empty. Write a thread for each output first. When it is right, make it fast by what the other
// exercises have taught: tiles, register tiles, wide loads, tensor cores. Before each change, predict how many loads a
// multiply-add needs, and from which memory. The command bench shows which steps of the ladder your kernel beats.
//@ kernel: conv
//@ block: 256
//@ grid: ceil_div(images * OH * OW, 256), M
//@ without: activation, padding, bytes
extern "C" __global__ void next_step(const float *x, const float *w, const float *bias, float *y, int images) {
    constexpr int OH = (H - K) / S + 1, OW = (W - K) / S + 1;
}
