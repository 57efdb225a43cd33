// C++ versions of the PTX functions of cluster.cuh and dependent_launch.cuh. No launch overlaps with another.
#pragma once
#include "async_copy.cuh"

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}

inline int cluster_rank() { return host::current->block->rank; }
inline void cluster_arrive() { host::current->cluster_arrivals++; }
inline void cluster_wait() {
    const auto have_come = [](void *, unsigned arrivals) {
        return std::all_of(host::threads->begin(), host::threads->end(),
                           [=](auto &one) { return one.done || one.cluster_arrivals >= arrivals; });
    };
    host::wait_until({have_come, nullptr, host::current->cluster_arrivals},
                     "waits at a barrier that not all threads of its cluster come to");
}
inline void store_in_block(int rank, float4 *shared, float4 value) {
    const unsigned offset = __cvta_generic_to_shared(shared) & 0xFFFFFF;
    host::Block &block = *(*host::threads)[rank * blockDim.x].block;
    if (!block.begun || block.left == 0) host::fail("writes to the shared memory of a block that does not run");
    *(float4 *)(block.memory.start + offset) = value;
}
