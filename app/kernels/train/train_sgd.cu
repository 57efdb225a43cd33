// Stochastic gradient descent with momentum, all parameters in one launch: v = momentum v + g; w = keep w - rate v.
//
// From: mlp (without momentum).
// Data: parameters, gradients, velocity (size) float32, weights first; squares (blocks) float64, see train_update.cuh.
// Launch: a grid of 1-D blocks of 256 threads over the parameters.
// Bound by: device memory.
#include "train_update.cuh"

extern "C" __global__ void train_sgd(float *__restrict__ parameters, const float *__restrict__ gradients,
                                     double *__restrict__ squares, int weights, int size, float l2, float keep,
                                     float *__restrict__ velocities, float momentum, float rate) {
    update(parameters, gradients, squares, weights, size, l2, keep, [=](float gradient, int at) {
        const float velocity = plus(times(velocities[at], momentum), gradient);
        velocities[at] = velocity;
        return times(rate, velocity);
    });
}
