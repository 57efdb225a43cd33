// Dropout: multiplies each feature by 0 or by 1 / (1 - share), chosen by its image's random bits. The mask is equal to
// that of app/training/cpu_trainer.py. It is drawn again for the gradient, so no mask is kept in memory.
//
// From: none of the reports.
// Data: x, y (images, FEATURES) float32, may be the same array; items (images) indices in the training set.
// Launch: a grid of 1-D blocks over the elements.
// Bound by: integer arithmetic, two mixings of 64 bits per element.
#include "train_random.cuh"

constexpr int FRACTION_BITS = 24;  // as in random_bits.py

// A feature is left out if its fraction of 24 bits is below ``least``.
extern "C" __global__ void train_dropout(const float *x, float *y, const int *__restrict__ items, int images,
                                         bits64 key, int least, float kept) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at >= (long long)images * FEATURES) return;
    const bits64 bits = random_bits(item_bits(key, items[at / FEATURES]), at % FEATURES);
    y[at] = x[at] * (int(bits >> (64 - FRACTION_BITS)) >= least ? kept : 0.0f);
}
