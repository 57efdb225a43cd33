// Bulk copies from global to shared memory by the copy engine, and the barriers that they complete on; sm_90 and later.
//
// An mbarrier in shared memory counts arrivals and, where a copy was announced, its bytes; it then turns over to its
// next phase. A phase is named by its parity: 0 first, then 1, then 0 again.
#pragma once
#include "async_copy.cuh"

__device__ __forceinline__ void mbarrier_init(unsigned long long *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// After barriers were initialised, before the copy engine uses them.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned long long *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Counts up to ``all`` and starts again at zero; returns whether this was the last. What each did before it counted is
// done for the last one, as with a barrier.
__device__ __forceinline__ bool arrives_last(unsigned *counter, int all) {
    unsigned before;
    asm volatile("atom.acq_rel.cta.shared::cta.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "r"(shared_address(counter)), "r"(all - 1)
                 : "memory");
    return before + 1 == unsigned(all);
}

// Waits until the phase of that parity is complete.
__device__ __forceinline__ void mbarrier_wait(unsigned long long *barrier, int phase) {
    asm volatile("{ .reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again; }" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}

// Where a warp is in stages that are filled and emptied in turn; the phase tells the turns of a stage apart.
template <int Stages>
struct PipelineState {
    int stage = 0, phase = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == Stages) stage = 0, phase ^= 1;
    }
};

// An arrival that announces so many bytes: the barrier's phase does not end before they have come.
__device__ __forceinline__ void mbarrier_expect_bytes(unsigned long long *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Starts a copy; both addresses and bytes are multiples of 16. The barrier's phase ends when all of it has arrived.
__device__ __forceinline__ void cp_async_bulk(void *shared, const void *global, int bytes, unsigned long long *barrier) {
    mbarrier_expect_bytes(barrier, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
