// async_copy.cuh for the processor: a copy arrives when it is waited for, and no sooner. Both its ends are touched at
// once, so that a wrong address shows where it is formed.
#pragma once
#include <deque>
#include <functional>

#include "half.cuh"

namespace host {
inline std::vector<std::function<void()>> open[1024];               // by thread: copies of no group yet
inline std::deque<std::vector<std::function<void()>>> groups[1024];  // by thread: the oldest first
}  // namespace host

template <typename T>
inline void cp_async(float *shared, const T *global) {
    *shared = float(*global);
}
inline void cp_async(float *shared, const float *global) {
    (void)*(volatile float *)shared, (void)*(const volatile float *)global;
    host::open[threadIdx.x].push_back([=] { *shared = *global; });
}
inline void cp_async_16(void *shared, const void *global) {
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) host::fail("copies 16 bytes from or to no multiple of 16");
    (void)*(volatile char *)shared, (void)*(const volatile char *)global;
    host::open[threadIdx.x].push_back([=] { std::memcpy(shared, global, 16); });
}
inline void cp_async_commit_group() {
    host::groups[threadIdx.x].push_back(std::move(host::open[threadIdx.x]));
    host::open[threadIdx.x].clear();
}
template <int Newest>
inline void cp_async_wait() {
    for (auto &groups = host::groups[threadIdx.x]; groups.size() > Newest; groups.pop_front())
        for (auto &copy : groups.front()) copy();
}
