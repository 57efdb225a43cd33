// In every four weights at least two are zero. Sparse products skip the zeros, which halves the tensor-core time.
//
// What changed since step 21: a product takes 32 channels in the time of 16. It reads the kept weights as A, and from
// registers two bits for each that say which of its four channels it belongs to. The rows of a column of taps lie one
// after another in shared memory, so their channels fill whole products, also where a tap alone has fewer than 32.
// Data: as step 21; w: the kept weights, and behind those of a stage their metadata (see sparse_pair.py).
// Launch: as step 21.
// Bound by: shared memory, which gives 128 bytes a clock: a product of N columns reads 2,048 bytes of A and 64 N of B in
//         the time of 64 N bytes.
#include "warpgroup_bands.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_warpgroup_sparse(const INPUT *__restrict__ x, const unsigned char *__restrict__ w, const float *__restrict__ factors,
                          const float *__restrict__ bias, OUTPUT *__restrict__ y, int images) {
    convolve_bands(x, w, factors, bias, y, images);
}
