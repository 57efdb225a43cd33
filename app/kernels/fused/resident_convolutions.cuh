// The first block of the resident kernel: it reads requests and sends features. The including file defines the
// constants and structs of resident_01_wgmma.cu, and includes the kernel of the convolutions.
#pragma once
// The first warpgroup waits for a request; its threads get their words of the first image. All blocks get the number of
// images, 0 if the kernel must end. Polling with two loads at a time was slower.
__device__ __forceinline__ void await_request(ulonglong2 &image, const unsigned long long *words, unsigned number,
                                              unsigned long long until, int t) {
    volatile ConvolutionStorage &smem = convolution_storage();
    unsigned flag = 0;
    while (t < LOADING && !arrived(image = load_words(words, t), number, flag)) {
        if (t == 0 && nanoseconds() > until) smem.given_up = 1;
        if (smem.given_up) break;
    }
    __syncwarp();
    if (t > 0) return;
    const int images = smem.given_up ? 0 : flag & 15;
    smem.images = images;
    for (int rank = SCORING; rank < BLOCKS; rank++)
        send(in_block(rank, &product_storage().images), in_block(rank, &product_storage().images_full), images);
}

// Stores a thread's even or odd maps, as First::store does both.
__device__ __forceinline__ void store_maps(unsigned char *pooled, const PooledOffsets<IMAGES * ROW_BYTES> &offsets,
                                           const Policy::First::Maps &maps, int odd) {
#if SPLIT
#pragma unroll
    for (int i = 0; i < 18; i++) {
        unsigned char *at = offsets.at(pooled, i / 2) + i % 2 * 32 + 2 * odd;
        const float16 high(maps.value[i]);
        *(float16 *)at = high;
        *(float16 *)(at + PART_BYTES) = float16(maps.value[i] - float(high));
    }
#else
#pragma unroll
    for (int j = 0; j < 9; j++) {
        unsigned char *at = offsets.at(pooled, j) + 2 * odd;
        *(float16 *)at = low_half(maps.pair[j]);
        *(float16 *)(at + 32) = high_half(maps.pair[j]);
    }
#endif
}

// Computes the first convolution's even or odd maps of a staged image by a warpgroup, with ReLU and pooling.
__device__ __forceinline__ void convolve_maps(const unsigned char *windows, unsigned char *pooled,
                                              const Policy::First::Filters &filters, const float *scales, int odd, int t) {
    typedef Policy::First First;
    First::Sums upper = {}, lower = {};
    wgmma_fence();
    First::convolve(upper, lower, filters, windows);
    wgmma_commit_group();
    wgmma_wait_group(upper, lower);
    First::Maps maps;
    First::pool(maps, upper, lower, scales);
    store_maps(pooled, pooled_offsets<IMAGES * ROW_BYTES, First::BYTES>(t), maps, odd);
    fence_proxy_async();
}

// Sends an image's features to the other blocks, a plane of eight per thread. Their wgmma reads them after the fence of
// the threads that wait for them.
__device__ __forceinline__ void send_features(const Feature *features, int image, int t) {
    ProductStorage &smem = product_storage();
    const uint4 *source = (const uint4 *)(features + 8 * t);
    uint4 high = source[0], low;
    if constexpr (SPLIT) {
        const float *value = (const float *)source;
        high.x = split_half2(value[0], value[1], low.x, LOW_SCALE);
        high.y = split_half2(value[2], value[3], low.y, LOW_SCALE);
        high.z = split_half2(value[4], value[5], low.z, LOW_SCALE);
        high.w = split_half2(value[6], value[7], low.w, LOW_SCALE);
    }
#pragma unroll
    for (int rank = SCORING; rank < BLOCKS; rank++) {
        const unsigned there = in_block(rank, smem.x + t * X_PLANE_BYTES + image * 16);
        const unsigned barrier = in_block(rank, &smem.features_full);
        send(there, barrier, high);
        if constexpr (SPLIT) send(there + X_PART_BYTES, barrier, low);
    }
}

// Writes the windows of an image: four bytes are the left half of one window and the right half of the window before.
__device__ __forceinline__ void stage_image(unsigned char *windows, const ulonglong2 &image, int t) {
    clear_padding(windows, t);
    const unsigned words[2] = {unsigned(image.x), unsigned(image.y)};
#pragma unroll
    for (int j = 0; j < 2; j++)
        if (t < LOADING) stage_word(windows, words[j], 2 * t + j);
    fence_proxy_async();
}

// Computes the second convolution of an image by a warpgroup, and sends its features.
__device__ __forceinline__ void finish_image(Policy &policy, unsigned char *windows, unsigned char *pooled, int group,
                                             int image, int t) {
    Feature *features = (Feature *)windows;  // the windows have been read
    policy.template convolve2<1>(features, pooled, 1);
    warpgroup_barrier(1 + group);
    send_features(features, image, t);
}

// Computes all images of one request. Two warpgroups share the first convolution of the first image; each further image
// is computed by one. filters: those of the first two warpgroups, for even and odd maps.
__device__ __forceinline__ void convolve_images(Policy &policy, ulonglong2 &words,
                                                const unsigned long long *requests, const uint4 *filters1,
                                                const Policy::First::Filters &filters, const float *scales,
                                                unsigned number, int images) {
    const int group = warpgroup_index(), t = thread_in_warpgroup();
    unsigned char *windows = SharedStorage::windows(group), *pooled = windows + SharedStorage::POOLED_AT;
    if (group < 2) {
        convolve_maps(SharedStorage::windows(0), SharedStorage::pooled(0), filters, scales, group, t);
        asm volatile("bar.sync 15, 256;" ::: "memory");
        if (group == 0) finish_image(policy, windows, pooled, group, 0, t);
    }
#pragma unroll 1
    for (int image = group ? group : GROUPS; image < images; image += GROUPS) {
        unsigned flag;
        while (t < LOADING && !arrived(words = load_words(requests + image * IMAGE_WORDS, t), number, flag)) {}
        __syncwarp();
        warpgroup_barrier(1 + group);  // the features of the image before have been sent
        stage_image(windows, words, t);
        warpgroup_barrier(1 + group);
#pragma unroll 1
        for (int odd = 0; odd < 2; odd++) {
            Policy::First::Filters loaded;
            Policy::First::load(loaded, filters1, odd, t);
            convolve_maps(windows, pooled, loaded, scales, odd, t);
        }
        warpgroup_barrier(1 + group);
        finish_image(policy, windows, pooled, group, image, t);
    }
}

__device__ __forceinline__ void convolve_requests(const unsigned long long *requests, const uint4 *filters1,
                                                  const unsigned char *filters2, const float *scales, unsigned number,
                                                  unsigned long long idle, unsigned long long life) {
#if SPLIT
    Policy policy{{}, scales};
#else
    Policy policy;
#endif
    const int group = warpgroup_index(), t = thread_in_warpgroup();
    const unsigned long long end = nanoseconds() + life;
    policy.begin(filters2, scales);
#if !SPLIT
    if (threadIdx.x == 0) shared_storage<SharedStorage>().last_factor = scales[1];  // as begin does elsewhere
#endif
    Policy::First::Filters filters;
    Policy::First::load(filters, filters1, group % 2, t);
    __syncthreads();
    policy.wait();
    for (;; number++) {
        ulonglong2 words;
        if (group == 0) {
            await_request(words, requests, number, min(end, nanoseconds() + idle), t);
            stage_image(SharedStorage::windows(0), words, t);
        }
        __syncthreads();
        const int images = convolution_storage().images;
        if (images == 0) return;
        convolve_images(policy, words, requests, filters1, filters, scales, number, images);
    }
}
