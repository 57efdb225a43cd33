// Transposes matrices, tile by tile through shared memory, so that reads and writes both run along rows. It converts
// C, H, W to the H, W, C order of flattened features, and their gradient back to C, H, W.
//
// From: mlp (for products with transposes, which train_gemm reads in place).
// Data: x (images, ROWS, COLUMNS), y (images, COLUMNS, ROWS) float32.
// Launch: a block of 256 threads for each tile of 32 x 32, those of an image one after another.
// Bound by: device memory. Rows of a tile have a spare element; without it, a warp would read a column from one bank.
constexpr int TILE = 32, STEP = 8;
constexpr int DOWN = (ROWS + TILE - 1) / TILE, ACROSS = (COLUMNS + TILE - 1) / TILE;

extern "C" __global__ void train_transpose(const float *__restrict__ x, float *__restrict__ y) {
    __shared__ float tile[TILE][TILE + 1];
    const long long image = blockIdx.x / (DOWN * ACROSS);
    const int row0 = blockIdx.x % (DOWN * ACROSS) / ACROSS * TILE, column0 = blockIdx.x % ACROSS * TILE;
    const int lane = threadIdx.x % TILE, first = threadIdx.x / TILE;
    x += image * (ROWS * COLUMNS), y += image * (ROWS * COLUMNS);
    for (int i = first; i < TILE; i += STEP)
        if (row0 + i < ROWS && column0 + lane < COLUMNS) tile[i][lane] = x[(row0 + i) * COLUMNS + column0 + lane];
    __syncthreads();
    for (int i = first; i < TILE; i += STEP)
        if (column0 + i < COLUMNS && row0 + lane < ROWS) y[(column0 + i) * ROWS + row0 + lane] = tile[lane][i];
}
