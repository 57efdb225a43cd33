// Training: adds the parts of a product whose sums were cut, and finishes it: activation(alpha sum + beta y + bias).
//
// The idea: GROUPS threads share an element's parts, each taking every GROUPS-th; their sums are added in order. The
// order depends on the number of parts alone: results are bit-identical on every card.
// From: mlp (column sums).
// Data: parts (count, rows, columns); bias (columns) or null; y (rows, columns); all float; elements = rows * columns.
// Launch: a block is COLUMNS neighbouring elements by GROUPS threads.
// Bound by: memory; by latency for few elements.
#include "train_result.cuh"

constexpr int COLUMNS = THREADS / GROUPS;
static_assert(THREADS % GROUPS == 0 && COLUMNS % 32 == 0, "a group must be whole warps");

extern "C" __global__ void __launch_bounds__(THREADS)
    train_sum_parts(const float *__restrict__ parts, const float *__restrict__ bias, float *__restrict__ y, int elements,
                    int columns, int count, float alpha, float beta) {
    __shared__ float sums[GROUPS][COLUMNS];
    const int group = threadIdx.x / COLUMNS, in_block = threadIdx.x % COLUMNS;
    const long long at = blockIdx.x * (long long)COLUMNS + in_block;
    float sum = 0.0f;
    if (at < elements) {
#pragma unroll 8
        for (int i = group; i < count; i += GROUPS) sum += parts[i * (long long)elements + at];
    }
    if (GROUPS > 1) {
        sums[group][in_block] = sum;
        __syncthreads();
        if (group > 0) return;
        for (int other = 1; other < GROUPS; other++) sum += sums[other][in_block];
    }
    if (at < elements) Result{y, bias, columns, alpha, beta}.set(at / columns, at % columns, sum);
}
