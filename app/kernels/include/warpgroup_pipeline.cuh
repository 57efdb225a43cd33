// Stages of shared memory that producer warps fill and consumer warpgroups multiply. The copy engine brings the
// weights, the threads of the producers bring the images.
//
// The including file defines STEPS of the sum, STAGES, STAGE_BYTES with W_BYTES of weights first, CONSUMERS and
// PRODUCERS (threads), the integer type WeightOffset, and SharedStorage, which begins with the stages, ``full`` and
// ``empty``.
#pragma once
#include "bulk_copy.cuh"
#include "shared_storage.cuh"
#include "wgmma.cuh"

__device__ __forceinline__ unsigned long long *full();   // a barrier per stage: a step has arrived
__device__ __forceinline__ unsigned long long *empty();  // a barrier per stage: all consumers have read it

// A step of the sum and its stage. A block takes all steps, or those from `first` up to `end`, exclusive.
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

// Initialises the barriers; one thread calls it first.
__device__ __forceinline__ void init_stages() {
    for (int stage = 0; stage < STAGES; stage++)
        mbarrier_init(full() + stage, 1 + PRODUCERS / 32), mbarrier_init(empty() + stage, CONSUMERS / 32);
}

__device__ __forceinline__ void bring_weights(const KStep &k, const unsigned char *w) {
    cp_async_bulk(k.smem(), w + (WeightOffset)k.index * W_BYTES, W_BYTES, full() + k.pipe.stage);
}

// Called by a producer before it fills a stage: waits until it is empty, and starts the copy of the weights.
__device__ __forceinline__ void acquire(const KStep &k, const unsigned char *w, int t) {
    if (k.taken() >= STAGES) {  // earlier stages are empty, and their weights requested
        mbarrier_wait(empty() + k.pipe.stage, k.pipe.phase ^ 1);
        if (t == 0) bring_weights(k, w);
    }
}

// Called by a producer that has stored its part of a step's images.
__device__ __forceinline__ void publish(const KStep &k, int t) {
    fence_proxy_async();
    __syncwarp();
    if (t % 32 == 0) mbarrier_arrive(full() + k.pipe.stage);
}
