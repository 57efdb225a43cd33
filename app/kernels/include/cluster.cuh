// Clusters, by PTX alone; sm_90 and later: blocks that run side by side and reach each other's shared memory.
// The row asks for one (KernelLaunch.cluster); any other block is a cluster of its own.
#pragma once
#include "async_copy.cuh"

// This block's number in its cluster.
__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// A barrier of all threads of the cluster, in two halves: after ``cluster_wait`` a thread sees what the cluster's threads wrote
// before ``cluster_arrive``, asynchronous copies apart. Both are for whole warps.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Stores to that place in the shared memory of another block, which must have begun and not ended.
__device__ __forceinline__ void store_in_block(int rank, float4 *shared, float4 value) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(shared)), "r"(rank));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(value.x), "f"(value.y),
                 "f"(value.z), "f"(value.w)
                 : "memory");
}
