// lenet5's whole pass for up to eight images, by a kernel that stays on the card: it waits for images in the host's
// page-locked memory and writes scores and labels there.
//
// An image needs no launch, and all weights are in shared memory or registers before it arrives.
// The arithmetic is that of the included kernel and of gemm_pair_02_wgmma: the same bits.
// From: none of the systems. Words with flags beside them are NCCL's protocol LL.
// Data: requests (MOST, 196) and answers (MOST, CLASSES + 1), words of eight bytes in host memory: four bytes of data,
//       then a flag. A request's flag is its number * 16 + its number of images, 0 to end the kernel; the first image's
//       words are written last. Answers carry the same flag. ended: gets ``launch`` at the end.
//       filters1, filters2, scales: packed for the included kernel; w1, bias1, w2, bias2: for gemm_pair_02_wgmma.
// Launch: one cluster of three blocks, each alone on its multiprocessor. The first computes the convolutions, a
//         warpgroup per image; the others compute half of the hidden values each, the second block also the scores. The
//         kernel ends after ``idle`` ns without a request, and after ``life`` ns at the latest: a device-wide
//         synchronisation waits no longer.
// Bound by: latency, one after another: two bus transfers, the convolutions' products, two messages between blocks,
//           and the products of the fully connected layers.
#include "cluster.cuh"
#include "flagged_words.cuh"
#if SPLIT
#include "conv_pair_04_wgmma_exact.cu"
typedef float Feature;
#else
#include "conv_pair_02_wgmma.cu"
typedef float16 Feature;
#endif
constexpr int MOST = 8, ROWS = MOST;  // images; rows of the second product
#include "second_product.cuh"

constexpr int GROUPS = SPLIT ? 3 : 4, RESIDENT_THREADS = 128 * GROUPS;  // fewer threads have more registers
constexpr int CONVOLVING = 0, SCORING = 1, BLOCKS = 3;  // ranks in the cluster; blocks from SCORING on multiply
constexpr int IMAGE_WORDS = 28 * 28 / 4, LOADING = IMAGE_WORDS / 2, ANSWER_WORDS = CLASSES + 1;
constexpr int PARTS = SPLIT ? 2 : 1, HALF = HIDDEN / 2;
constexpr int DEPTH = 128 / PARTS, STEPS = INPUTS / DEPTH, PLANES = INPUTS / 8, STEP_PLANES = DEPTH / 8;
constexpr int X_PLANE_BYTES = (MOST + 1) * 16, X_PART_BYTES = PLANES * X_PLANE_BYTES;  // as in gemm_pair_02_wgmma
constexpr int IMAGE_BYTES = PARTS * INPUTS * 2, W_PLANE_BYTES = HALF * 16;
static_assert(GROUPS <= WARPGROUPS, "the included kernel's shared memory has room for them");
static_assert(PLANES == 128 && HALF == 64, "a thread of a warpgroup sends a plane, a warpgroup multiplies a half");
static_assert(WEIGHT_PARTS == 1, "both halves of weights do not fit");
static_assert(CLASS_TILES == 1 && !SOFTMAX, "a lane has two scores of an image");

// The shared memory of a block of the fully connected layers.
struct ProductStorage {
    unsigned char w[PLANES * W_PLANE_BYTES];
    unsigned char x[PARTS * X_PART_BYTES];
    unsigned char second[SECOND_BYTES];
    float4 partial[STEPS][128];  // sums of each step, of each thread of a warpgroup
    float4 scores[HIDDEN / 8 + 2][32];  // parts of the second product, of each lane
    float hidden[HIDDEN * PITCH];
    int images;
    unsigned long long weights_full, images_full, features_full, hidden_full;  // barriers
};
// The shared memory of the convolutions' block: that of the included kernel, and more.
struct ConvolutionStorage : SharedStorage {
    int images, given_up;
};
static_assert(sizeof(ProductStorage) <= RESIDENT_BYTES && sizeof(ConvolutionStorage) <= RESIDENT_BYTES,
              "the launch asks for less shared memory");
__device__ __forceinline__ ProductStorage &product_storage() { return *(ProductStorage *)memory; }
__device__ __forceinline__ volatile ConvolutionStorage &convolution_storage() {
    return *(volatile ConvolutionStorage *)memory;
}

__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

#include "resident_convolutions.cuh"
#include "resident_products.cuh"

extern "C" __global__ void __launch_bounds__(RESIDENT_THREADS, 1)
    resident_wgmma(const unsigned long long *requests, const uint4 *__restrict__ filters1,
                   const unsigned char *__restrict__ filters2, const float *__restrict__ scales,
                   const unsigned char *__restrict__ w1, const float *__restrict__ bias1, const void *__restrict__ w2,
                   const float *__restrict__ bias2, unsigned long long *answers, unsigned *ended, unsigned launch,
                   unsigned number, unsigned long long idle, unsigned long long life) {
    const int rank = cluster_rank();
    if (threadIdx.x == 0) {
        if (rank == CONVOLVING) convolution_storage().given_up = 0;
        else begin_products(w1, w2, rank - SCORING);
    }
    __syncwarp();
    cluster_arrive();  // all blocks have begun and initialised their barriers
    cluster_wait();
    if (rank == CONVOLVING) convolve_requests(requests, filters1, filters2, scales, number, idle, life);
    else multiply_requests(bias1, bias2, answers, number);
    if (rank == CONVOLVING && threadIdx.x == 0)
        asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(ended), "r"(launch) : "memory");
}
