// Two convolutions of any sizes as in step 0, the second by warpgroup tensor-core instructions: Hopper's.
//
// The first convolution writes its maps in the layout of warpgroup_convolution.cuh, with zeros around them.
// From: none of the systems.
// Data: as in step 0, but filters2 as core matrices (see any_warpgroups.py), factors2 and bias2 padded to tiles of
// maps.
// Launch: one block per SM; each of its WARPGROUPS takes an image on its own: while one stages its image or computes
//         the first convolution, the others keep the tensor cores busy. Second filters that do not fit stream through a
//         ring, in step for all warpgroups.
// Bound by: the tensor cores, where tiles are full.
#include "any_image.cuh"

struct Layer {
    static constexpr int CHANNELS = M1, MAPS = M2, KERNEL = K2, STRIDE = S2, WINDOW = POOL2;
    static constexpr int STAGED_HEIGHT = Second::IH, STAGED_WIDTH = Second::IW, HEIGHT = Second::OH, WIDTH = Second::OW;
    static constexpr int POOLED_HEIGHT = PH2, POOLED_WIDTH = PW2;
    static constexpr bool IS_MAX = MAX2, WITH_BIAS = HAS_BIAS2;
    typedef ACT2 Activation;
};
#include "warpgroup_convolution.cuh"

constexpr int IMAGE_BYTES = C1 * H0 * W0;

struct GroupStorage {
    half2 pairs[(PAIRS + 3) / 4 * 4];
    unsigned char maps[PARTS * MAPS_BYTES];
    unsigned char bytes[(IMAGE_BYTES + 15) / 16 * 16];
    unsigned char results[STAGED * RESULTS * sizeof(OUTPUT) + 16];
};
constexpr int EVEN1 = (M1 + 1) / 2 * 2;
struct SharedStorage : FilterStorage {
    uint2 filters1[WEIGHT_PARTS * FILTERS1];
    float factors1[((2 + SCALED1) * EVEN1 + 3) / 4 * 4];  // then the biases
    GroupStorage groups[WARPGROUPS];
};
__device__ __forceinline__ SharedStorage &smem() { return shared_storage<SharedStorage>(); }

// The vectors of 16 bytes of the next image that a thread loads ahead, if a few hold all of it; larger images are
// loaded when they are computed. Ordinary loads: over a bus, copies of 16 bytes (cp.async) take twice the time.
constexpr int IMAGE_VECTORS = IMAGE_BYTES / 16, VECTORS = (IMAGE_VECTORS + 7 + 127) / 128;
constexpr bool AHEAD = IMAGE_BYTES % 16 == 0 && VECTORS <= 2;
struct ImageVectors {
    uint4 vector[AHEAD ? VECTORS : 1];
};

// Threads count from the start of a line of 128 bytes, so that no two warps read a line, which a bus would carry twice.
__device__ __forceinline__ int first_vector(const unsigned char *image, int thread) {
    return thread - int((unsigned long long)image / 16 % 8);
}
__device__ __forceinline__ void load_image(ImageVectors &vectors, const unsigned char *image, int thread) {
#pragma unroll
    for (int i = 0; AHEAD && i < VECTORS; i++) {
        const int number = first_vector(image, thread) + 128 * i;
        if (number >= 0 && number < IMAGE_VECTORS) vectors.vector[i] = __ldg((const uint4 *)image + number);
    }
}
__device__ __forceinline__ void store_image(unsigned char *bytes, const ImageVectors &vectors,
                                            const unsigned char *image, int thread) {
    if (AHEAD) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const int number = first_vector(image, thread) + 128 * i;
            if (number >= 0 && number < IMAGE_VECTORS) ((uint4 *)bytes)[number] = vectors.vector[i];
        }
    } else if (IMAGE_BYTES % 16 == 0) {
        for (int i = thread; i < IMAGE_VECTORS; i += 128) ((uint4 *)bytes)[i] = __ldg((const uint4 *)image + i);
    } else {
        for (int i = thread; i < IMAGE_BYTES; i += 128) bytes[i] = __ldg(image + i);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_pair_wgmma_any(const unsigned char *__restrict__ x, const uint2 *__restrict__ filters1,
                        const float *__restrict__ factors1, const float *__restrict__ bias1,
                        const unsigned char *__restrict__ filters2, const float *__restrict__ factors2,
                        const float *__restrict__ bias2, OUTPUT *__restrict__ y, int images) {
    const int group = warpgroup_index(), thread = threadIdx.x % 128;
    const int stride = WARPGROUPS * gridDim.x;
    GroupStorage &own = smem().groups[group];
    Filters filters = {filters2};
    int image = blockIdx.x + group * gridDim.x;
    ImageVectors vectors = {};
    if (image < images) load_image(vectors, x + (long long)image * IMAGE_BYTES, thread);
    filters.begin(factors2, bias2);
    for (int i = threadIdx.x; i < WEIGHT_PARTS * FILTERS1; i += THREADS) smem().filters1[i] = __ldg(filters1 + i);
    float *own_factors = smem().factors1, *own_bias = own_factors + (1 + SCALED1) * EVEN1;
    for (int i = threadIdx.x; i < (1 + SCALED1) * EVEN1; i += THREADS) own_factors[i] = __ldg(factors1 + i);
    for (int i = threadIdx.x; i < EVEN1; i += THREADS) own_bias[i] = HAS_BIAS1 ? __ldg(bias1 + i) : 0.0f;
    for (int i = thread; i < PAIRS; i += 128)
        if (P1 > 0 || i >= PAIRS - 9) own.pairs[i] = 0;
    for (int i = thread; i < sizeof(own.maps) / 16; i += 128) ((uint4 *)own.maps)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    filters.wait_for_all();

    const int rounds = (images - (int)blockIdx.x + stride - 1) / stride;  // the first warpgroup has most
    for (int round = 0; STREAMED ? round < rounds : image < images; round++, image += stride) {
        filters.begin_round(round + 1 == rounds);
        if (STREAMED && image >= images) {
            filters.skip_round();
            continue;
        }
        const unsigned char *source = x + (long long)image * IMAGE_BYTES;
        store_image(own.bytes, vectors, source, thread);
        warpgroup_barrier(1 + group);  // the bytes are there, and the maps of the image before have been read
        if (RESIZED) {
            unsigned short *wide = (unsigned short *)own.maps;  // the maps' memory is free until the first convolution
            static_assert(!RESIZED || C1 * H0 * W1 * 2 <= sizeof(own.maps), "the widened rows need more room");
            widen<128>(wide, own.bytes, thread);
            warpgroup_barrier(1 + group);
            stage_pixels<128>(own.pairs, own.bytes, wide, thread);
            warpgroup_barrier(1 + group);
            for (int i = thread; i < sizeof(own.maps) / 16; i += 128) ((uint4 *)own.maps)[i] = make_uint4(0, 0, 0, 0);
        } else {
            stage_pixels<128>(own.pairs, own.bytes, nullptr, thread);
        }
        warpgroup_barrier(1 + group);
        if (image + stride < images) load_image(vectors, source + (long long)stride * IMAGE_BYTES, thread);

        unsigned char *maps = own.maps;
        convolve<First, 4>(thread / 32, own.pairs, nullptr, smem().filters1, own_factors, own_bias,
                           [=](int value, int map, float a, float b) {
                               half2 *at = (half2 *)(maps + map / 8 * PLANE_BYTES + map % 8 * 2 +
                                                     pixel_offset(value / PW1 + P2, value % PW1 + P2));
                               const half2 high = pack_half2(a, b);
                               *at = high;
                               if (PARTS == 2)
                                   at[MAPS_BYTES / 4] = pack_half2(a - float(low_half(high)), b - float(high_half(high)));
                           });
        fence_proxy_async();
        warpgroup_barrier(1 + group);

        convolve_tiles(y + (long long)image * RESULTS, (OUTPUT *)own.results, maps, filters, 0, group);
    }
}
