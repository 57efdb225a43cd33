// Gathers a batch from the training images by index. The random bits of an image decide its shift and flip, in integer
// arithmetic: results equal those of app/training/cpu_trainer.py. OUTPUT is uint8, or float32 times SCALE.
//
// From: none of the reports, which copied batches from the host unchanged.
// Data: images (all, CHANNELS, H, W) bytes; items (batch) indices of images; y (batch, CHANNELS, H, W) OUTPUT.
// Launch: a block for each image of the batch; its threads go over the pixels.
// Bound by: latency; an image is less than a kilobyte.
#include "common.cuh"
#include "train_random.cuh"

constexpr int PIXELS = CHANNELS * H * W;

__device__ __forceinline__ void store(uint8 *y, int value) { *y = value; }
__device__ __forceinline__ void store(float32 *y, int value) { *y = float(value) * float(SCALE); }

extern "C" __global__ void train_gather(const uint8 *__restrict__ images, const int *__restrict__ items,
                                        OUTPUT *__restrict__ y, bits64 key) {
    const int item = items[blockIdx.x];
    int down = 0, right = 0;  // from an output pixel to the one it is taken from
    bool flipped = false;
    if (SHIFT || FLIP) {
        const bits64 own = item_bits(key, item);
        down = whole(random_bits(own, 0), 2 * SHIFT + 1) - SHIFT;
        right = whole(random_bits(own, 1), 2 * SHIFT + 1) - SHIFT;
        flipped = FLIP && whole(random_bits(own, 2), 2) == 1;
    }
    images += item * (long long)PIXELS, y += blockIdx.x * (long long)PIXELS;
    for (int at = threadIdx.x; at < PIXELS; at += blockDim.x) {
        const int column = at % W, row = at / W % H, channel = at / (H * W);
        const int from_row = row + down, from_column = (flipped ? W - 1 - column : column) + right;
        const bool inside = from_row >= 0 && from_row < H && from_column >= 0 && from_column < W;
        store(y + at, inside ? images[(channel * H + from_row) * W + from_column] : 0);
    }
}
