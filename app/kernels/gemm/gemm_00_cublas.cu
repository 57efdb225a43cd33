// cuBLAS multiplies in float32, and two kernels do the rest: they convert x to float32 if it has another type, add the
// bias, apply the activation and convert the result to y's type.
//
// Data: x (rows, DEPTH) INPUT; w (DEPTH, N) float; bias (N) or null; y (rows, N) OUTPUT; workspace, each only where
//       the type is not float32 already: wide_x (rows, DEPTH) float, product (rows, N) float. All row-major.
// Launch: gemm_cublas_widen over the rows * DEPTH elements of x, cuBLAS, gemm_cublas over the rows * N of y.
#include "common.cuh"

#if WIDENS
extern "C" __global__ void gemm_cublas_widen(const INPUT *x, const float *w, const float *bias, OUTPUT *y,
                                             float *wide_x,
#if NARROWS
                                             float *product,
#endif
                                             int rows, int DEPTH, int N) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < (long long)rows * DEPTH) wide_x[at] = float(x[at]);
}
#endif

extern "C" __global__ void gemm_cublas(const INPUT *x, const float *w, const float *bias, OUTPUT *y,
#if WIDENS
                                       float *wide_x,
#endif
#if NARROWS
                                       float *product,
#endif
                                       int rows, int DEPTH, int N) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at >= (long long)rows * N) return;
#if !NARROWS
    const float *product = y;  // cuBLAS has put the product where the result belongs
#endif
    y[at] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(product[at], HAS_BIAS ? bias[at % N] : 0.0f));
}
