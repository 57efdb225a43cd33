// Softmax by rows, cross-entropy against smoothed labels, its gradient, and how many answers are correct: one block for
// the whole batch, so that loss and count are sums in a fixed order without a second launch. With a teacher, the share
// ``teaching`` of the loss is the distance from the teacher's softmax, both at a temperature: T^2 KL(teacher ||
// logits).
//
// From: fa19, minidnn86 (softmax), mlp (with separate kernels for exp, row sums and division).
// Data: logits, slope, teacher (images, CLASSES) float32, teacher may be null; labels of all images,
//       items (images) indices among them; result: loss / total and correct answers, float64. own: the target of the
//       label's class; even: that of every other class.
// Launch: one block of 256 threads, which take one row after another each.
// Bound by: latency; rows are short.
#include "common.cuh"
#include "train_sum.cuh"

// The logarithms of a row's softmax at a temperature.
struct LogSoftmax {
    const float *row;
    float temperature, most, log_sum;
    __device__ LogSoftmax(const float *row, float temperature) : row(row), temperature(temperature), most(row[0]) {
        for (int k = 1; k < CLASSES; k++) most = pool_step<true>(most, row[k]);
        float sum = 0;
        for (int k = 0; k < CLASSES; k++) sum += expf((row[k] - most) / temperature);
        log_sum = logf(sum);
    }
    __device__ float at(int k) const { return (row[k] - most) / temperature - log_sum; }
};

// Replaces the share ``teaching`` of a row's loss and slope by those of the teacher.
__device__ void teach(float *slope, double &loss, const LogSoftmax &own, const LogSoftmax &teacher, int total,
                      float teaching, float temperature) {
    double distance = 0;
    for (int k = 0; k < CLASSES; k++) {
        const float found = own.at(k), wanted = teacher.at(k), share = expf(wanted);
        distance += share * (wanted - found);
        slope[k] += teaching * (temperature * (expf(found) - share) / total - slope[k]);
    }
    loss += teaching * (temperature * temperature * distance - loss);
}

extern "C" __global__ void train_cross_entropy(const float *__restrict__ logits, const float *__restrict__ teacher,
                                               const uint8 *__restrict__ labels, const int *__restrict__ items,
                                               float *__restrict__ slope, double *__restrict__ result, int images,
                                               int total, float even, float own, float teaching,
                                               float temperature) {
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
        double row_loss = 0;
        for (int k = 0; k < CLASSES; k++) {
            const float shifted = row[k] - most, target = k == label ? own : even;
            row_loss -= (shifted - log_sum) * target;
            result_row[k] = (expf(shifted) / sum - target) / total;
        }
        if (teacher)
            teach(result_row, row_loss, LogSoftmax(row, temperature),
                  LogSoftmax(teacher + image * (long long)CLASSES, temperature), total, teaching, temperature);
        loss += row_loss;
        correct += best == label;
    }
    loss = block_sum(loss);
    correct = block_sum(correct);
    if (threadIdx.x == 0) result[0] = loss / total, result[1] = correct;
}
