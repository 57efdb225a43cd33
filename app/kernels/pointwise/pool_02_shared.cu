// Pooling, step 2: the input tile is staged in shared memory first, then each thread reads its windows there.
// Since step 1: one more copy of every element, and a barrier between reading and pooling.
//
// From: lenet5, which tried it for average pooling and dropped it: windows that do not overlap read each element once.
// Data: x (maps, H, W) INPUT, maps = images * CHANNELS; y (maps, PH, PW) OUTPUT. Rows and columns that do not fill
//       a window are dropped, or PH and PW count windows over the border, which pool their pixels inside the image.
//       Padding as in step 1.
// Launch: blockIdx.x = TILES * (group of MAPS maps) + tile of TILE_H x TILE_W outputs; as small maps would leave
//         threads idle, a block takes several.
// A window is added up row by row, as in step 1: both agree to the bit.
// Bound by: device memory, as step 1; shared memory can save only re-reads of overlapping windows.
#include "pool_window.cuh"
constexpr int TILES_W = (PW + TILE_W - 1) / TILE_W, TILES = (PH + TILE_H - 1) / TILE_H * TILES_W;
constexpr int IN_H = (TILE_H - 1) * STRIDE + WINDOW, IN_W = (TILE_W - 1) * STRIDE + WINDOW;  // size of the input tile

extern "C" __global__ void pool_shared(const INPUT *__restrict__ x, OUTPUT *__restrict__ y, int images) {
    extern __shared__ __align__(16) unsigned char memory[];
    INPUT *staged = (INPUT *)memory;  // MAPS, IN_H, IN_W

    const long long map0 = blockIdx.x / TILES * (long long)MAPS, maps = (long long)images * CHANNELS;
    const int row0 = blockIdx.x % TILES / TILES_W * TILE_H, column0 = blockIdx.x % TILES % TILES_W * TILE_W;

    for (int at = threadIdx.x; at < MAPS * IN_H * IN_W; at += blockDim.x) {
        const long long map = map0 + at / (IN_H * IN_W);
        const int row = row0 * STRIDE - PADDING + at / IN_W % IN_H, column = column0 * STRIDE - PADDING + at % IN_W;
        if (map < maps && row < H && column < W && is_pixel<PADDING>(row, column, H, W)) staged[at] = x[(map * H + row) * W + column];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < MAPS * TILE_H * TILE_W; at += blockDim.x) {
        const int in_group = at / (TILE_H * TILE_W), i = at / TILE_W % TILE_H, j = at % TILE_W;
        const long long map = map0 + in_group;
        if (map >= maps || row0 + i >= PH || column0 + j >= PW) continue;
        const INPUT *window = staged + (in_group * IN_H + i * STRIDE) * IN_W + j * STRIDE;
        const WindowExtent extent(row0 + i, column0 + j);
        REAL result = window[extent.top * IN_W + extent.left];
#pragma unroll 64
        for (int k = 0; k < WINDOW * WINDOW; k++)
            if (extent.has_another(k / WINDOW, k % WINDOW))
                result = pool_step<IS_MAX>(result, REAL(window[k / WINDOW * IN_W + k % WINDOW]));
        y[(map * PH + row0 + i) * PW + column0 + j] = OUTPUT(pool_finish<IS_MAX>(result, extent.count));
    }
}
