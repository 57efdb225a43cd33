// async_copy.cuh for the processor: a copy arrives when it is waited for, and no sooner.
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
    host::open[threadIdx.x].push_back([=] { *shared = *global; });
}
inline void cp_async_16(float *shared, const float *global) {
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) abort();
    host::open[threadIdx.x].push_back([=] { std::copy(global, global + 4, shared); });
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
