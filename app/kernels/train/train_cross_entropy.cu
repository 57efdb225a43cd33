// Softmax by rows, cross-entropy against smoothed labels, its gradient, and how many answers are correct: one block for
// the whole batch, so that loss and count are sums in a fixed order without a second launch.
//
// From: fa19, minidnn86 (softmax), mlp (exp, row sums and division were kernels of their own there).
// Data: logits, slope (images, CLASSES) float32; labels of all images, items (images) places among them;
//       result: loss / total and correct answers, float64. even: a target's share of every class, own: the label's.
// Launch: one block of 256 threads, a row each in turn.
// Bound by: latency; rows are short.
#include "common.cuh"
#include "train_sum.cuh"

extern "C" __global__ void train_cross_entropy(const float *__restrict__ logits, const uint8 *__restrict__ labels,
                                               const int *__restrict__ items, float *__restrict__ slope,
                                               double *__restrict__ result, int images, int total, float even,
                                               float own) {
    double loss = 0;
    int correct = 0;
    for (int image = threadIdx.x; image < images; image += blockDim.x) {
        const float *row = logits + image * (long long)CLASSES;
        float *result_row = slope + image * (long long)CLASSES;
        const int label = labels[items[image]];
        float most = row[0];
        int best = 0;
        for (int k = 1; k < CLASSES; k++) {
            if (wins(row[k], k, row[best], best)) best = k;
            most = pool_step<true>(most, row[k]);  // NaN stays
        }
        float sum = 0;
        for (int k = 0; k < CLASSES; k++) sum += expf(row[k] - most);
        const float log_sum = logf(sum);
        for (int k = 0; k < CLASSES; k++) {
            const float shifted = row[k] - most, target = k == label ? own : even;
            loss -= (shifted - log_sum) * target;
            result_row[k] = (expf(shifted) / sum - target) / total;
        }
        correct += best == label;
    }
    loss = block_sum(loss);
    correct = block_sum(correct);
    if (threadIdx.x == 0) result[0] = loss / total, result[1] = correct;
}
