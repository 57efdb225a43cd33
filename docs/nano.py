"""Label the 10,000 test images of Fashion-MNIST on an NVIDIA GPU: the whole idea of this project in one file.

    python docs/nano.py [FOLDER]        FOLDER has t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz

Read it from top to bottom: the network, four kernels in CUDA C++, the data, the GPU, the check, the times. It uses
nothing of app; a comment at each part ("In earnest") names the folder of app that does the same for real use.
Exit code 0: the labels are right. 1: they are not. 2: the data set or a GPU is missing.
"""

import gzip
import os
import sys
import zlib
from pathlib import Path
from statistics import median
from typing import NoReturn

import cupy
import h5py
import numpy as np
from cupyx.profiler import benchmark  # also a part of CuPy

# 1. The network. In earnest: app/network, which reads networks from files, and app/layers.
#   images     28 x 28 bytes
#   maps       32 x 12 x 12 floats   conv1: 32 filters of 5 x 5, ReLU, means of 2 x 2 pixels
#   features   4 x 4 x 64 floats     conv2: 64 filters of 32 x 5 x 5, ReLU, means of 2 x 2 pixels
#   hidden     128 floats            fc1: a product with 1024 x 128 weights, ReLU
#   labels     1 byte                fc2: a product with 128 x 10 weights; the label is the index of the greatest sum
# One image takes 7.8 million FLOPs, 84 % of them in conv2. At the 51 TFLOP/s that an H100 sustains in float32, 10,000
# images take 1.5 ms. Their bytes take 0.15 ms over the bus.
# LAYERS: name, threads and images of a block. SIZES: values an image and their type, of images and layers' outputs.
WEIGHTS = Path(__file__).resolve().parent.parent / "weights"
LAYERS = (("conv1", 288, 8), ("conv2", 256, 4), ("fc1", 128, 32), ("fc2", 256, 8))
SIZES = ((28 * 28, "u1"), (32 * 12 * 12, "f4"), (4 * 4 * 64, "f4"), (128, "f4"), (1, "u1"))

# 2. The kernels. In earnest: app/kernels, where each step from a plain loop to tensor cores is a file.
# The sums of a convolution are in registers, so the same kernel applies ReLU and pooling and stores a quarter as much.
# A load takes longer than a multiply-add, so a thread computes many sums and uses each loaded value for several.
KERNELS = r"""
#define UNROLL _Pragma("unroll")  // replaces a loop by copies of its body, so that its arrays can be registers
extern "C" {
// 32 filters of 5 x 5, divided by 255. A warp reads one tap at a time: constant memory serves all threads at once.
__constant__ float filters1[32 * 5 * 5];
__device__ float relu(float x) { return x > 0 ? x : 0; }
__device__ float pooled(float a, float b, float c, float d) { return 0.25f * (relu(a) + relu(b) + relu(c) + relu(d)); }

// A thread reads 8 x 8 pixels once and computes 4 x 4 sums of every map from them: 16 multiply-adds for each tap.
__global__ void __launch_bounds__(288) conv1(const unsigned char *images, float *maps, int count) {
    const int thread = blockIdx.x * 288 + threadIdx.x, image = thread / 36;  // 6 x 6 threads for an image
    const int row = thread % 36 / 6 * 4, column = thread % 6 * 4;
    if (image >= count) return;
    float pixels[8][8];
    UNROLL for (int i = 0; i < 64; i++)
        pixels[i / 8][i % 8] = images[image * 784 + (row + i / 8) * 28 + column + i % 8];
    float *out = maps + image * 32 * 144 + row / 2 * 12 + column / 2;
    for (int map = 0; map < 32; map++, out += 144) {
        float sums[4][4] = {};
        UNROLL for (int tap = 0; tap < 25; tap++)
            UNROLL for (int i = 0; i < 16; i++)
                sums[i / 4][i % 4] += pixels[i / 4 + tap / 5][i % 4 + tap % 5] * filters1[map * 25 + tap];
        UNROLL for (int r = 0; r < 4; r += 2)
            *(float2 *)(out + r / 2 * 12) = {pooled(sums[r][0], sums[r][1], sums[r + 1][0], sums[r + 1][1]),
                                             pooled(sums[r][2], sums[r][3], sums[r + 1][2], sums[r + 1][3])};
    }
}

// A block computes 4 images. Each of its warps has 8 maps; the warp's threads have 8 patches of 2 x 4 pixels in each
// image. The block copies 4 channels of images and filters to shared memory, adds them to the sums, and takes the next
// 4. For 320 multiply-adds a thread does 14 loads of 16 bytes.
__global__ void __launch_bounds__(256, 2) conv2(const float4 *maps, const float4 *filters, float *features, int count) {
    __shared__ float4 pixels[4 * 144];    // image, channel, row, column / 4
    __shared__ float4 taps[4 * 25 * 16];  // channel, filter row, filter column, map / 4
    const int first = blockIdx.x * 4, own = threadIdx.x / 8 % 4, group = threadIdx.x / 32;
    const int row = threadIdx.x % 8 / 2 * 2, half = threadIdx.x % 2;
    float sums[8][2][4] = {};
    for (int channel = 0; channel < 32; channel += 4) {
        __syncthreads();  // all threads have used the channels before these
        for (int i = threadIdx.x; i < 4 * 144; i += 256)
            pixels[i] = maps[min(first + i / 144, count - 1) * 32 * 36 + channel * 36 + i % 144];
        for (int i = threadIdx.x; i < 4 * 400; i += 256) taps[i] = filters[channel * 400 + i];
        __syncthreads();  // all copies have arrived
#pragma unroll 1
        for (int line = 0; line < 4 * 5; line++) {  // channel, filter row
            alignas(16) float values[2][8], weights[8];
            const float4 *from = pixels + own * 144 + line / 5 * 36 + (row + line % 5) * 3 + half;
            UNROLL for (int i = 0; i < 4; i++) *(float4 *)&values[i / 2][i % 2 * 4] = from[i / 2 * 3 + i % 2];
            UNROLL for (int q = 0; q < 5; q++) {
                const float4 *tap = taps + line * 80 + q * 16 + group * 2;
                *(float4 *)weights = tap[0], *(float4 *)(weights + 4) = tap[1];
                UNROLL for (int i = 0; i < 64; i++)
                    sums[i / 8][i / 4 % 2][i % 4] += values[i / 4 % 2][i % 4 + q] * weights[i / 8];
            }
        }
    }
    if (first + own >= count) return;
    float *out = features + ((first + own) * 16 + row * 2 + half * 2) * 64 + group * 8;
    UNROLL for (int m = 0; m < 8; m++) {
        out[m] = pooled(sums[m][0][0], sums[m][0][1], sums[m][1][0], sums[m][1][1]);
        out[m + 64] = pooled(sums[m][0][2], sums[m][0][3], sums[m][1][2], sums[m][1][3]);
    }
}

// A block computes 32 images, a thread 4 of the 128 units for 8 of them, from tiles of 32 inputs in shared memory.
__global__ void __launch_bounds__(128) fc1(const float4 *features, const float4 *weights, float4 *hidden, int count) {
    __shared__ float4 x[32 * 8], w[32 * 32];  // image, input / 4; input, unit / 4
    const int first = blockIdx.x * 32, lane = threadIdx.x % 32, top = threadIdx.x / 32 * 8;
    float sums[8][4] = {};
    for (int k = 0; k < 1024; k += 32) {
        __syncthreads();
        for (int i = threadIdx.x; i < 32 * 8; i += 128)
            x[i] = features[min(first + i / 8, count - 1) * 256 + k / 4 + i % 8];
        for (int i = threadIdx.x; i < 32 * 32; i += 128) w[i] = weights[k * 32 + i];
        __syncthreads();
        UNROLL for (int i = 0; i < 32; i++) {
            const float4 four = w[i * 32 + lane];
            UNROLL for (int r = 0; r < 8; r++) {
                const float value = ((const float *)x)[(top + r) * 32 + i];
                sums[r][0] += value * four.x, sums[r][1] += value * four.y;
                sums[r][2] += value * four.z, sums[r][3] += value * four.w;
            }
        }
    }
    float4 *out = hidden + (first + top) * 32 + lane;
    UNROLL for (int r = 0; r < 8; r++)
        if (first + top + r < count)
            out[r * 32] = {relu(sums[r][0]), relu(sums[r][1]), relu(sums[r][2]), relu(sums[r][3])};
}

// A warp computes an image: each lane adds 4 products for a class, and shuffles add the lanes' sums.
__global__ void fc2(const float *hidden, const float *weights, unsigned char *labels, int count) {
    const int image = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (image >= count) return;
    float best = 0;
    int label = 0;
    for (int k = 0; k < 10; k++) {
        float sum = 0;
        for (int i = lane; i < 128; i += 32) sum += hidden[image * 128 + i] * weights[i * 10 + k];
        for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffff, sum, apart);
        if (k == 0 || sum > best) best = sum, label = k;
    }
    if (lane == 0) labels[image] = label;
}
}
"""


def fail(why: str) -> NoReturn:
    """Print an error in one line and end the program with exit code 2."""
    print(f"error: {why}", file=sys.stderr)
    raise SystemExit(2)


# 3. Weights and images. In earnest: app/files, which checks every file, and data_tools, which fetches the data set.
def load_weights() -> list[np.ndarray]:
    """Return the weights of the four layers, float32, in the order in which the kernels read them."""
    with h5py.File(WEIGHTS / "lenet5_fashion.h5") as file:
        conv1, conv2, fc1, fc2 = (file[name][:].astype(np.float32) for name, *_ in LAYERS)
    arrays = conv1.transpose(2, 3, 0, 1) / np.float32(255), conv2.transpose(2, 0, 1, 3), fc1, fc2  # from row, ..., map
    return [np.ascontiguousarray(array) for array in arrays]


def load_images() -> tuple[np.ndarray, np.ndarray]:
    """Return the test images, (10000, 784) uint8, and their classes, (10000,) uint8."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "lenet5-inference")
    cache = Path(os.environ.get("LENET_CACHE_DIR") or home, "fashion-mnist")
    folder = Path(sys.argv[1] if sys.argv[1:] else os.environ.get("FASHION_MNIST_DIR") or cache)
    try:
        paths = (folder / f"t10k-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))
        images, classes = (np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8) for path in paths)
        return images[16:].reshape(10_000, 784), classes[8:].reshape(10_000)  # after the headers
    except (OSError, EOFError, ValueError, zlib.error) as error:
        fail(f"no good test images in {folder}: {error}; run: python -m data_tools fetch")


# 4. The GPU. In earnest: app/cuda compiles and launches, app/engine copies while kernels run.
def allocate_page_locked(count: int, size: int) -> np.ndarray:
    """Return a (count, size) uint8 array in page-locked host memory, which the GPU copies without the CPU."""
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(count * size), np.uint8, count * size).reshape(count, size)


class Card:
    """The network on the GPU, with memory for the outputs of all layers for ``count`` images."""

    def __init__(self, count: int) -> None:
        module = cupy.RawModule(code=KERNELS, options=("-std=c++17",))  # NVRTC compiles here
        self.kernels = [module.get_function(name) for name, *_ in LAYERS]
        filters1, *others = load_weights()
        module.get_global("filters1").copy_from_host(filters1.ctypes.data, filters1.nbytes)
        self.weights = [(), *((cupy.asarray(array),) for array in others)]
        self.arrays = [cupy.empty((count, size), dtype) for size, dtype in SIZES]
        self.streams = [cupy.cuda.Stream() for _ in range(4)]

    def launch_layer(self, layer: int, part: slice) -> None:
        """Queue the kernel of a layer on the current stream. part: the images to compute."""
        _, threads, images = LAYERS[layer]
        read, written = (array[part] for array in self.arrays[layer : layer + 2])
        blocks, count = -(-len(read) // images), np.int32(len(read))
        self.kernels[layer]((blocks,), (threads,), (read, *self.weights[layer], written, count))

    def classify(self, images: np.ndarray, labels: np.ndarray, chunk: int = 2000) -> None:
        """Write the labels of page-locked images to ``labels``. While a stream copies a chunk, others compute."""
        for number, first in enumerate(range(0, len(images), chunk)):
            part = slice(first, first + chunk)
            read, written = self.arrays[0][part], self.arrays[-1][part]
            with self.streams[number % len(self.streams)] as stream:
                read.data.copy_from_host_async(images[part].ctypes.data, read.nbytes, stream)
                for layer in range(len(LAYERS)):
                    self.launch_layer(layer, part)
                written.data.copy_to_host_async(labels[part].ctypes.data, written.nbytes, stream)
        cupy.cuda.Device().synchronize()


# 5. The check. In earnest: app/network/verdicts.py, and tests that compare every element of every layer.
def judge(labels: np.ndarray, classes: np.ndarray) -> tuple[bool, str]:
    """Return whether the labels, (10000,), differ from the reference only in up to ten near-ties, and a sentence.

    classes: true labels. Near-tie: the best two float64 scores of the reference differ by less than 64 roundings.
    """
    with h5py.File(WEIGHTS / "lenet5_fashion_reference.h5") as file:
        reference, margins, magnitudes = (file[name][:] for name in ("labels", "margins", "magnitudes"))
    differs = labels != reference
    wrong = int((differs & (margins >= 64 * 2.0**-24 * magnitudes)).sum())
    equal = f"{(~differs).sum():,} of {len(labels):,} labels equal the float64 reference's"
    others = f", {differs.sum()} differ, {differs.sum() - wrong} of them in near-ties" if differs.any() else ""
    return wrong == 0 and differs.sum() <= 10, f"{equal}{others}; {(labels == classes).sum():,} are correct"


# 6. The times. In earnest: app/main_job and app/lab.
def main() -> int:
    """Label the images, check the labels and print the times. Return the exit code."""
    loaded, classes = load_images()
    try:
        card = Card(len(loaded))
    except (RuntimeError, ImportError, OSError) as error:  # CuPy's errors of the GPU are RuntimeErrors
        fail(f"no GPU that CuPy can use: {' '.join(str(error).split())}; without one run: python main.py --device cpu")
    images, labels = allocate_page_locked(*loaded.shape), allocate_page_locked(len(loaded), 1)
    images[:], labels[:] = loaded, 255
    card.classify(images, labels)
    passed, verdict = judge(labels[:, 0], classes)
    print(f"{'PASSED' if passed else 'FAILED'}: {verdict}")
    for layer, (name, *_) in enumerate(LAYERS):
        seconds = benchmark(card.launch_layer, (layer, slice(None)), n_repeat=50).gpu_times[0]
        print(f"{name:<12}{median(seconds) * 1e3:6.3f} ms")
    seconds = benchmark(card.classify, (images, labels), n_repeat=100).cpu_times
    print(f"{'end to end':<12}{median(seconds) * 1e3:6.3f} ms from host memory to host memory, {len(images):,} images")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
