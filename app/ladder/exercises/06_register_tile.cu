// More results for each load
//
// If a thread computes one result, each multiply-add needs two loads. Here a thread computes ROWS * COLUMNS results, 4
// outputs of 2 images. For each k it loads ROWS values of x and COLUMNS of w, and multiplies each with each: 6 loads
// for 8 multiply-adds. The sums are in registers if the loops over them are unrolled.
//
// Write the sums and the stores. Read and write nothing beyond the edges of the arrays.
//@ kernel: gemm
//@ ROWS = 2
//@ COLUMNS = 4
//@ block: 8, 8
//@ grid: ceil_div(N, 8 * COLUMNS), ceil_div(images, 8 * ROWS)
//@ without: activation, bytes
extern "C" __global__ void register_tile(const float *x, const float *w, const float *bias, float *y, int images) {
    const int image = (blockIdx.y * 8 + threadIdx.y) * ROWS, n = (blockIdx.x * 8 + threadIdx.x) * COLUMNS;
    float sums[ROWS][COLUMNS] = {};
    for (int k = 0; k < DEPTH; k++) {
        float a[ROWS], b[COLUMNS];
        // load a and b, and add their products to sums
    }
    // store sums, with the bias
}
