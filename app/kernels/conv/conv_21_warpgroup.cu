// Warpgroups multiply by wgmma, which Hopper cards alone have. Each tap of the filter reads the same pixels in shared
// memory, from another start address, so no tile is unrolled and no thread loads an operand.
//
// Data: x (images, C, H, W) INPUT: float16, or float32 that is split in two; w packed (see warpgroups.py) float16; factors
//       (M) from sums to values and bias (M) or null, both padded to tiles of maps; y (images, M, PH, PW) OUTPUT.
// Launch: one block per SM; each of its WARPGROUPS takes a band of an image on its own, CHUNKS tiles of ROWS rows: while
//         one loads, the others multiply. Filters that do not fit stream through a ring, in step for all warpgroups.
#include "warpgroup_bands.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_warpgroup(const INPUT *__restrict__ x, const unsigned char *__restrict__ w, const float *__restrict__ factors,
                   const float *__restrict__ bias, OUTPUT *__restrict__ y, int images) {
    convolve_bands(x, w, factors, bias, y, images);
}
