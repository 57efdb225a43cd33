// The result of a matrix product from a sum: activation(alpha * sum + beta * y + bias). A beta of 0 does not read y.
#pragma once
#include "common.cuh"

struct Result {
    float *y;           // (rows, columns)
    const float *bias;  // (columns) or null
    int columns;
    float alpha, beta;

    __device__ __forceinline__ void set(long long row, int column, float sum) const {
        float *out = y + row * columns + column;
        float value = alpha * sum;
        if (beta != 0.0f) value = fmaf(beta, *out, value);
        *out = epilogue<HAS_BIAS, ACTIVATION>(value, HAS_BIAS ? bias[column] : 0.0f);
    }
};
