// Stages of shared memory between producer warps, which fill them, and consumer warpgroups, which multiply what is in
// them: weights by the copy engine, images by the producers' threads.
//
// Who includes it has defined STEPS of the sum, STAGES, STAGE_BYTES with W_BYTES of weights first, CONSUMERS and
// PRODUCERS (threads) and the integer WeightOffset, and defines SharedStorage, which begins with the stages, ``full``
// and ``empty``.
#pragma once
#include "bulk_copy.cuh"
#include "shared_storage.cuh"
#include "wgmma.cuh"

__device__ __forceinline__ unsigned long long *full();   // a barrier for each stage: it holds a step
__device__ __forceinline__ unsigned long long *empty();  // and: all consumers have read it

// A step of the sum, and the stage that it lies in. A block takes all steps, or those from `first` to before `end`.
struct KStep {
    int index, first, end;
    PipelineState<STAGES> pipe;
    __device__ __forceinline__ KStep(int first = 0, int end = STEPS) : index(first), first(first), end(end) {}
    __device__ __forceinline__ bool exists() const { return index < end; }
    __device__ __forceinline__ int taken() const { return index - first; }
    __device__ __forceinline__ void advance() {
        index++;
        pipe.advance();
    }
    __device__ __forceinline__ unsigned char *smem() const { return memory + pipe.stage * STAGE_BYTES; }
};

// One thread, before all else.
__device__ __forceinline__ void init_stages() {
    for (int stage = 0; stage < STAGES; stage++)
        mbarrier_init(full() + stage, 1 + PRODUCERS / 32), mbarrier_init(empty() + stage, CONSUMERS / 32);
}

__device__ __forceinline__ void bring_weights(const KStep &k, const unsigned char *w) {
    cp_async_bulk(k.smem(), w + (WeightOffset)k.index * W_BYTES, W_BYTES, full() + k.pipe.stage);
}

// A producer, before it fills a step's stage: waits until it is empty, and asks for the weights.
__device__ __forceinline__ void acquire(const KStep &k, const unsigned char *w, int t) {
    if (k.taken() >= STAGES) {  // before, all are empty and their weights on the way
        mbarrier_wait(empty() + k.pipe.stage, k.pipe.phase ^ 1);
        if (t == 0) bring_weights(k, w);
    }
}

// A producer has stored its part of a step's images.
__device__ __forceinline__ void publish(const KStep &k, int t) {
    fence_proxy_async();
    __syncwarp();
    if (t % 32 == 0) mbarrier_arrive(full() + k.pipe.stage);
}
