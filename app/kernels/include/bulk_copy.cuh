// Bulk copies from global to shared memory by the copy engine, and the barriers that they complete on; sm_90 and later.
//
// An mbarrier in shared memory counts arrivals and the bytes of announced copies. When all have come, its next phase
// begins. A phase is named by its parity: 0 first, then 1, then 0 again.
#pragma once
#include "async_copy.cuh"

__device__ __forceinline__ void mbarrier_init(unsigned long long *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned long long *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Counts up to ``all`` and starts again at zero; returns whether this caller is the last. The last caller sees what the
// others wrote before they counted.
__device__ __forceinline__ bool arrives_last(unsigned *counter, int all) {
    unsigned before;
    asm volatile("atom.acq_rel.cta.shared::cta.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "r"(shared_address(counter)), "r"(all - 1)
                 : "memory");
    return before + 1 == unsigned(all);
}

// Waits until the barrier's phase with this parity is complete.
__device__ __forceinline__ void mbarrier_wait(unsigned long long *barrier, int phase) {
    asm volatile("{ .reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again; }" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}

// A warp's position in a ring of stages: the stage, and the parity of the round, which its barriers' phases have.
template <int Stages>
struct PipelineState {
    int stage = 0, phase = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == Stages) stage = 0, phase ^= 1;
    }
};

// Arrives and announces ``bytes``: the barrier's phase does not end before so many have come.
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
