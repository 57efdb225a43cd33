// Clusters, by PTX alone; sm_90 and later: blocks that run at the same time and can access each other's shared memory.
// KernelLaunch.cluster of the registry row requests them; without it each block is a cluster.
#pragma once
#include "async_copy.cuh"

// Returns this block's number in its cluster.
__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// A barrier of all threads of the cluster, in two halves: after ``cluster_wait`` a thread sees what they wrote before
// ``cluster_arrive``, except asynchronous copies. Whole warps must call both.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Maps an address in this block's shared memory to the same one in another block, which must have begun and not ended.
__device__ __forceinline__ unsigned in_block(int rank, const void *shared) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(shared)), "r"(rank));
    return there;
}

// Stores to the same address in the shared memory of another block.
__device__ __forceinline__ void store_in_block(int rank, float4 *shared, float4 value) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(in_block(rank, shared)), "f"(value.x),
                 "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
}

// Messages: stores to another block, whose bytes an mbarrier there counts (bulk_copy.cuh). ``in_block`` gives both
// addresses.
__device__ __forceinline__ void send(unsigned there, unsigned barrier, int value) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(there), "r"(value),
                 "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void send(unsigned there, unsigned barrier, float2 value) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there),
                 "f"(value.x), "f"(value.y), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void send(unsigned there, unsigned barrier, uint4 value) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
                 "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
                 : "memory");
}
// Waits until all messages of the barrier's phase with this parity have come.
__device__ __forceinline__ void wait_for_messages(unsigned long long *barrier, int phase) {
    asm volatile("{ .reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again; }" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}
