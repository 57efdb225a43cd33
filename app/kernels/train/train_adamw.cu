// AdamW, all parameters in one launch: running means of gradients and of their squares, and the resulting step.
//
// From: none of the reports; Loshchilov and Hutter, 2019.
// Data: parameters, gradients, means, squared_means (size) float32, weights first; squares (blocks) float64, see
//       train_update.cuh. The host computes the factors that depend on the step's number:
//       root_scale is (1 - beta2^step)^(1/2), and rate is divided by 1 - momentum^step.
// Launch: a grid of 1-D blocks of 256 threads over the parameters.
// Bound by: device memory.
#include "train_update.cuh"

extern "C" __global__ void train_adamw(float *__restrict__ parameters, const float *__restrict__ gradients,
                                       double *__restrict__ squares, int weights, int size, float l2, float keep,
                                       float *__restrict__ means, float *__restrict__ squared_means, float momentum,
                                       float rest, float beta2, float rest2, float root_scale, float epsilon,
                                       float rate) {
    update(parameters, gradients, squares, weights, size, l2, keep, [=](float gradient, int at) {
        const float mean = plus(times(means[at], momentum), times(rest, gradient));
        const float square = plus(times(squared_means[at], beta2), times(rest2, times(gradient, gradient)));
        means[at] = mean, squared_means[at] = square;
        return times(rate, mean) / plus(sqrtf(square) / root_scale, epsilon);
    });
}
