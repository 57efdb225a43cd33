// Asynchronous copies from global to shared memory (sm_80 and later; ordinary copies before).
//
// A copy that converts the element type goes through registers and is synchronous.
#pragma once
#include "half.cuh"

__device__ __forceinline__ unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// Copies one element, converted to float.
template <typename T>
__device__ __forceinline__ void cp_async(float *shared, const T *global) {
    *shared = float(*global);
}
__device__ __forceinline__ void cp_async(float *shared, const float *global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global) : "memory");
#else
    *shared = *global;
#endif
}

// Copies sixteen bytes; both addresses must be multiples of sixteen.
__device__ __forceinline__ void cp_async_16(void *shared, const void *global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
#else
    *(uint4 *)shared = *(const uint4 *)global;
#endif
}

// Copies sixteen bytes if ``there``, else writes sixteen zeros (sm_80 and later).
__device__ __forceinline__ void cp_async_16_or_zeros(void *shared, const void *global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(there ? 16 : 0)
                 : "memory");
}

// Ends a group of copies; cp_async_wait<N> waits until at most the N newest groups are still under way.
__device__ __forceinline__ void cp_async_commit_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int Newest>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(Newest) : "memory");
#endif
}
