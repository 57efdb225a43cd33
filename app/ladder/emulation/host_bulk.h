// C++ versions of the PTX functions of bulk_copy.cuh. A barrier is stored where the kernel has it, in shared memory. A bulk
// copy is made when a thread waits for its barrier, and no sooner.
//
// Bulk copies and tensor cores access shared memory through the async proxy: here a second copy of shared memory, which
// gets the threads' writes only by fence_proxy_async.
#pragma once
#include "async_copy.cuh"

namespace host {
struct Barrier {
    unsigned short mark, phase, pending, expected;  // pending: arrivals that this phase still needs; expected: of each phase
};
constexpr unsigned short MARK = 0xB1C5;

struct BulkCopy {
    Block *block;
    Barrier *barrier;
    unsigned char *to;
    const void *from;
    int bytes;
};
inline std::vector<BulkCopy> bulk_copies;

inline Barrier &barrier_at(unsigned long long *place) {
    __cvta_generic_to_shared(place);
    static_assert(sizeof(Barrier) == sizeof *place);
    Barrier &barrier = *(Barrier *)place;
    if (barrier.mark != MARK) fail("uses a barrier that was not initialised, or written over");
    return barrier;
}
inline bool has_pending_copy(const Barrier &barrier) {
    return std::any_of(bulk_copies.begin(), bulk_copies.end(), [&](auto &copy) { return copy.barrier == &barrier; });
}
inline void end_phase_if_complete(Barrier &barrier) {
    if (barrier.pending == 0 && !has_pending_copy(barrier)) barrier.phase ^= 1, barrier.pending = barrier.expected;
}
inline void arrive(Barrier &barrier) {
    if (barrier.pending == 0) fail("arrives at a barrier more often than it counts");
    barrier.pending--;
}

// Makes all copies that complete on the barrier.
inline void complete_copies(Barrier &barrier) {
    for (std::size_t i = 0; i < bulk_copies.size();) {
        const BulkCopy copy = bulk_copies[i];
        if (copy.barrier != &barrier) {
            i++;
            continue;
        }
        std::memcpy(copy.to, copy.from, copy.bytes);
        std::memcpy(copy.block->proxy.data() + (copy.to - copy.block->memory.start), copy.from, copy.bytes);
        copy.block->copies--;
        bulk_copies.erase(bulk_copies.begin() + i);
    }
    end_phase_if_complete(barrier);
}
}  // namespace host

inline void mbarrier_init(unsigned long long *place, int arrivals) {
    __cvta_generic_to_shared(place);
    *(host::Barrier *)place = {host::MARK, 0, (unsigned short)arrivals, (unsigned short)arrivals};
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(unsigned long long *place) {
    host::Barrier &barrier = host::barrier_at(place);
    host::arrive(barrier);
    host::end_phase_if_complete(barrier);
}
inline bool arrives_last(unsigned *counter, int all) {
    __cvta_generic_to_shared(counter);
    const bool last = *counter + 1 == unsigned(all);
    *counter = *counter >= unsigned(all - 1) ? 0 : *counter + 1;
    return last;
}
inline void mbarrier_wait(unsigned long long *place, int phase) {
    const auto is_over = [](void *of, unsigned phase) {
        host::Barrier &barrier = *(host::Barrier *)of;
        if (barrier.phase == phase && barrier.pending == 0) host::complete_copies(barrier);
        return barrier.phase != phase;
    };
    host::wait_until({is_over, &host::barrier_at(place), unsigned(phase)},
                     "waits for a phase of a barrier in shared memory that never ends");
}
inline void cp_async_bulk(void *shared, const void *global, int bytes, unsigned long long *place) {
    host::Barrier &barrier = host::barrier_at(place);
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16 || bytes % 16 || bytes <= 0)
        host::fail("copies in bulk from, to or by no multiple of 16");
    __cvta_generic_to_shared(shared), __cvta_generic_to_shared((char *)shared + bytes);
    host::touch(global), host::touch((const char *)global + bytes - 1);
    host::current->block->copies++;
    host::bulk_copies.push_back({host::current->block, &barrier, (unsigned char *)shared, global, bytes});
    host::arrive(barrier);
}
