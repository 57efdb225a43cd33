// The L2 part of the loss: half of L2 times the sum of the weights' squares, from the blocks' sums in a fixed order.
//
// From: mlp.
// Data: squares (count) float64, as train_sgd or train_adamw leave them; penalty (1) float64.
// Launch: one block of 256 threads.
// Bound by: latency.
#include "train_sum.cuh"

extern "C" __global__ void train_penalty(const double *__restrict__ squares, double *__restrict__ penalty, int count,
                                         double half_l2) {
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += squares[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) penalty[0] = half_l2 * sum;
}
