// The other blocks of the resident kernel: they compute scores and labels from features, as gemm_pair_02_wgmma does.
// The including file defines the constants and structs of resident_01_wgmma.cu.
#pragma once
#if SPLIT
struct Weights {};  // they stay in shared memory
__device__ __forceinline__ void load_weights(Weights &, int) {}

// Computes this block's half of the sums by the first warpgroup. All products are in flight at once: each step has
// separate sums, and consecutive products add to different ones.
__device__ __forceinline__ void multiply_steps(float (&partial)[4 * STEPS], float (&cross)[4], const Weights &) {
    const ProductStorage &smem = product_storage();
    const unsigned long long w = make_smem_desc(shared_address(smem.w) & WITHIN_BLOCK, W_PLANE_BYTES, 128);
    const unsigned long long x = make_smem_desc(shared_address(smem.x) & WITHIN_BLOCK, X_PLANE_BYTES, 128);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < PLANES / 2; i++) {
        const int step = i % STEPS, plane = step * STEP_PLANES + i / STEPS * 2;
        wgmma_f16(*(float(*)[4])(partial + 4 * step), advance_desc(w, plane * W_PLANE_BYTES),
                  advance_desc(x, plane * X_PLANE_BYTES), i < STEPS);
        // These products add to one sum, in the order of the planes.
        wgmma_f16(cross, advance_desc(w, 2 * i * W_PLANE_BYTES),
                  advance_desc(x, 2 * i * X_PLANE_BYTES + X_PART_BYTES), i == 0);
    }
    wgmma_commit_group();
    wgmma_wait_group(partial);
    wgmma_wait_group(cross);
}
#else
// A thread's weights in registers; a warpgroup has a quarter of the planes.
constexpr int GROUP_PLANES = PLANES / GROUPS, GROUP_STEPS = STEPS / GROUPS;
struct Weights {
    uint4 planes[GROUP_PLANES / 2];
};
__device__ __forceinline__ void load_weights(Weights &weights, int t) {
    const int row = t % 128 / 32 * 16 + t % 32 / 4;  // and that + 8
    const unsigned char *from = product_storage().w + t / 128 * GROUP_PLANES * W_PLANE_BYTES + row * 16 + t % 4 * 4;
#pragma unroll
    for (int i = 0; i < GROUP_PLANES / 2; i++) {
        const unsigned char *left = from + 2 * i * W_PLANE_BYTES, *right = left + W_PLANE_BYTES;
        weights.planes[i] = {*(const unsigned *)left, *(const unsigned *)(left + 8 * 16), *(const unsigned *)right,
                             *(const unsigned *)(right + 8 * 16)};
    }
}

// Computes this block's half of the sums: each warpgroup multiplies its steps, and the first gets the sums of all.
__device__ __forceinline__ void multiply_steps(float (&partial)[4 * STEPS], float (&)[4], const Weights &weights) {
    ProductStorage &smem = product_storage();
    const int group = warpgroup_index(), t = thread_in_warpgroup();
    const unsigned long long x =
        make_smem_desc((shared_address(smem.x) & WITHIN_BLOCK) + group * GROUP_PLANES * X_PLANE_BYTES, X_PLANE_BYTES, 128);
    float mine[4 * GROUP_STEPS] = {};
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < GROUP_PLANES / 2; i++) {
        const int step = i % GROUP_STEPS, plane = step * STEP_PLANES + i / GROUP_STEPS * 2;
        wgmma_f16(*(float(*)[4])(mine + 4 * step), weights.planes[plane / 2], advance_desc(x, plane * X_PLANE_BYTES),
                  i < GROUP_STEPS);
    }
    wgmma_commit_group();
    wgmma_wait_group(mine);
#pragma unroll
    for (int step = 0; step < GROUP_STEPS; step++)
        smem.partial[group * GROUP_STEPS + step][t] = *(float4 *)(mine + 4 * step);
    __syncthreads();
    if (group > 0) return;
#pragma unroll
    for (int step = 0; step < STEPS; step++) *(float4 *)(partial + 4 * step) = smem.partial[step][t];
}
#endif

// Sends this block's half of all images' hidden values to the block that computes the scores. Steps are added as in
// gemm_pair_02_wgmma.
__device__ __forceinline__ void multiply_half(const float *bias1, const Weights &weights, int half, int t) {
    ProductStorage &smem = product_storage();
    float partial[4 * STEPS] = {}, cross[4] = {};
    multiply_steps(partial, cross, weights);
    if (t >= 128) return;
    const int lane = t % 32, hidden = half * HALF + t / 32 * 16 + lane / 4;  // and that + 8
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const int row = hidden + i * 4;
        float value[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float sum = HAS_BIAS1 ? __ldg(bias1 + row) : 0.0f;
#pragma unroll
            for (int step = 0; step < STEPS; step++) sum += partial[4 * step + i + j];
            // + 0: the sum there starts from zero, so it is never a negative zero.
            value[j] = RELU::of(SPLIT ? sum + (cross[i + j] + 0.0f) * (1.0f / LOW_SCALE) : sum);
        }
        send(in_block(SCORING, smem.hidden + row * PITCH + lane % 4 * 2), in_block(SCORING, &smem.hidden_full),
             make_float2(value[0], value[1]));
    }
}

// The second product as in second_product.cuh, by six warps: four compute products of high parts, each for a quarter of
// the steps; the others each sum the products of a high and a low part over all steps.
constexpr int STEP_WARPS = 4, SECOND_WARPS = STEP_WARPS + 2;
__device__ __forceinline__ void multiply_second_part(int warp, int lane) {
    ProductStorage &smem = product_storage();
    const Fragment *high_w = (const Fragment *)smem.second + lane, *low_w = high_w + FRAGMENTS;
    const float *hidden = smem.hidden + lane % 4 * PITCH + lane / 4;
    float4 *scores = &smem.scores[0][lane];
    unsigned high[2], low[2];
    if (warp < STEP_WARPS) {
#pragma unroll
        for (int i = 0; i < K_STEPS / STEP_WARPS; i++) {
            const int k = warp * (K_STEPS / STEP_WARPS) + i;
            split_tf32(hidden[k * 8 * PITCH], high[0], low[0]);
            split_tf32(hidden[(k * 8 + 4) * PITCH], high[1], low[1]);
            const Fragment w = high_w[k * 32];
            float sums[4] = {};
            mma_tf32(sums, w.at, high);
            scores[k * 32] = *(float4 *)sums;
        }
        return;
    }
    const bool of_low_weights = warp == STEP_WARPS;
    float sums[4] = {};
#pragma unroll
    for (int k = 0; k < K_STEPS; k++) {
        split_tf32(hidden[k * 8 * PITCH], high[0], low[0]);
        split_tf32(hidden[(k * 8 + 4) * PITCH], high[1], low[1]);
        const Fragment w = (of_low_weights ? low_w : high_w)[k * 32];
        const unsigned values[2] = {of_low_weights ? high[0] : low[0], of_low_weights ? high[1] : low[1]};
        mma_tf32(sums, w.at, values);
    }
    scores[(K_STEPS + !of_low_weights) * 32] = *(float4 *)sums;
}
__device__ __forceinline__ void add_scores(Scores &scores, const float *bias2, int lane) {
    const ProductStorage &smem = product_storage();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int label = lane / 4 + i / 2 * 8;
        scores[0][i] = HAS_BIAS2 && label < CLASSES ? __ldg(bias2 + label) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < K_STEPS; k++) {
        const float4 part = smem.scores[k][lane];
        scores[0][0] += part.x, scores[0][1] += part.y, scores[0][2] += part.z, scores[0][3] += part.w;
    }
    const float4 low_w = smem.scores[K_STEPS][lane], low_hidden = smem.scores[K_STEPS + 1][lane];
    scores[0][0] += low_w.x + low_hidden.x, scores[0][1] += low_w.y + low_hidden.y;
    scores[0][2] += low_w.z + low_hidden.z, scores[0][3] += low_w.w + low_hidden.w;
}

// Writes scores and labels of all images to host memory: a lane of the first warp has two images' scores of two
// classes.
__device__ __forceinline__ void answer(unsigned long long *answers, const float *bias2, int images, unsigned flag,
                                       int t) {
    const int lane = t % 32;
    multiply_second_part(t / 32, lane);
    asm volatile("bar.sync 15, %0;" ::"n"(32 * SECOND_WARPS) : "memory");
    if (t >= 32) return;
    Scores scores;
    add_scores(scores, bias2, lane);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int image = lane % 4 * 2 + i;
        unsigned long long *words = answers + image * ANSWER_WORDS;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int label = lane / 4 + half * 8;
            if (image < images && label < CLASSES) store_word(words + label, __float_as_uint(scores[0][2 * half + i]), flag);
        }
        const int best = best_of(scores, i, lane).label;
        if (image < images && lane < 4) store_word(words + CLASSES, best, flag);
    }
    __syncwarp();
}

// Initialises the barriers and loads this block's weights, before other blocks send anything.
__device__ __forceinline__ void begin_products(const unsigned char *w1, const void *w2, int half) {
    ProductStorage &smem = product_storage();
    mbarrier_init(&smem.weights_full, PLANES + 1);
    mbarrier_init(&smem.images_full, 1);
    mbarrier_init(&smem.features_full, 1);
    mbarrier_init(&smem.hidden_full, 1);
    fence_mbarrier_init();
    for (int plane = 0; plane < PLANES; plane++)
        cp_async_bulk(smem.w + plane * W_PLANE_BYTES, w1 + (2 * plane + half) * W_PLANE_BYTES, W_PLANE_BYTES,
                      &smem.weights_full);
    cp_async_bulk(smem.second, w2, SECOND_BYTES, &smem.weights_full);
}

__device__ __forceinline__ void multiply_requests(const float *bias1, const float *bias2, unsigned long long *answers,
                                                  unsigned number) {
    ProductStorage &smem = product_storage();
    const int t = threadIdx.x, half = cluster_rank() - SCORING;
    mbarrier_wait(&smem.weights_full, 0);
    Weights weights;
    load_weights(weights, t);
    for (int phase = 0;; number++, phase ^= 1) {
        if (t == 0) mbarrier_expect_bytes(&smem.images_full, sizeof(int));
        wait_for_messages(&smem.images_full, phase);
        const int images = smem.images;
        if (images == 0) return;
        if (t == 0) {
            mbarrier_expect_bytes(&smem.features_full, images * IMAGE_BYTES);
            if (half == 0) mbarrier_expect_bytes(&smem.hidden_full, HIDDEN * MOST * sizeof(float));
        }
        wait_for_messages(&smem.features_full, phase);
        fence_proxy_async();
        if (!SPLIT || t < 128) multiply_half(bias1, weights, half, t);
        __syncthreads();  // all threads have read the number of images, before the answer can cause the next request
        if (half == 0 && t < 32 * SECOND_WARPS) {
            wait_for_messages(&smem.hidden_full, phase);
            answer(answers, bias2, images, number << 4 | images, t);
        }
    }
}
