// Bulk copies from global to shared memory by the copy engine, and the barriers that they complete on; sm_90 and later.
//
// A barrier in shared memory counts arrivals and, where a copy was announced, its bytes; it then turns over, and its
// parity (0 first) says which turn is complete.
#pragma once
#include "async_copy.cuh"

__device__ __forceinline__ void init_barrier(unsigned long long *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// After barriers were initialised, before the copy engine uses them.
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(unsigned long long *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits until the turn of that parity is complete.
__device__ __forceinline__ void wait_for_turn(unsigned long long *barrier, int parity) {
    asm volatile("{ .reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again; }" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// Where a walk over slots is that are filled and emptied in turn; the parity tells a slot's turns apart.
template <int Slots>
struct Ring {
    int slot = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == Slots) slot = 0, parity ^= 1;
    }
};

// Starts a copy; both addresses and bytes are multiples of 16. The barrier's turn ends when all of it has arrived.
__device__ __forceinline__ void copy_bulk(void *shared, const void *global, int bytes, unsigned long long *barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
