// C++ versions of the PTX functions of async_copy.cuh. A copy is made when the kernel waits for it, and no sooner. Both of its
// addresses are read at once, so that a wrong one is reported where the kernel starts the copy.
#pragma once
#include "half.cuh"

namespace host {
struct AsyncCopy {
    void *to;
    const void *from;
    int bytes;
    bool there;  // false: write zeros instead
};
struct AsyncCopies {
    std::vector<AsyncCopy> all;       // not yet made, the oldest first
    std::vector<std::size_t> groups;  // size of ``all`` when each group ended
};
inline AsyncCopies async_copies[MOST_THREADS];  // by thread

inline void touch(const volatile void *place) { (void)*(const volatile char *)place; }
}  // namespace host

inline void cp_async(float *shared, const float *global) {
    (void)*(volatile float *)shared, (void)*(const volatile float *)global;
    host::async_copies[host::number()].all.push_back({shared, global, 4, true});
}
inline void cp_async_16_or_zeros(void *shared, const void *global, bool there) {
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) host::fail("copies 16 bytes from or to no multiple of 16");
    host::touch(shared);
    if (there) host::touch(global);
    host::async_copies[host::number()].all.push_back({shared, global, 16, there});
}
inline void cp_async_16(void *shared, const void *global) { cp_async_16_or_zeros(shared, global, true); }
inline void cp_async_commit_group() {
    host::AsyncCopies &own = host::async_copies[host::number()];
    own.groups.push_back(own.all.size());
}
template <int Newest>
inline void cp_async_wait() {
    host::AsyncCopies &own = host::async_copies[host::number()];
    if (own.groups.size() <= Newest) return;
    const std::size_t ended = own.groups.size() - Newest, arrived = own.groups[ended - 1];
    for (std::size_t i = 0; i < arrived; i++) {
        const host::AsyncCopy &copy = own.all[i];
        if (copy.there) std::memcpy(copy.to, copy.from, copy.bytes);
        else std::memset(copy.to, 0, copy.bytes);
    }
    own.all.erase(own.all.begin(), own.all.begin() + arrived);
    own.groups.erase(own.groups.begin(), own.groups.begin() + ended);
    for (std::size_t &group : own.groups) group -= arrived;
}
