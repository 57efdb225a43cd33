// Clock stamps for ``profile --timeline``: when each warpgroup ended each of its phases. STAMPS is the greatest number
// of stamps per warpgroup, STAMPED the number of warpgroups of the launch; without STAMPS this compiles to nothing.
#pragma once

#ifdef STAMPS
enum class Phase { STAGE, CONV1, POOL, LOAD, CONV2, STORE };

// Words per warpgroup: number of stamps; nanoseconds and clock at its start; both at its end; then clock * 8 + phase.
constexpr int STAMPS_HEAD = 5;
__device__ unsigned long long stamps[STAMPED * (STAMPS_HEAD + STAMPS)];

__device__ __forceinline__ unsigned long long clock_now() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    return now;
}
__device__ __forceinline__ unsigned long long nanoseconds_now() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

// Returns this warpgroup's part of the stamps. Their count is in shared memory, to take no register.
__device__ __forceinline__ unsigned long long *own_stamps() {
    return stamps + (blockIdx.x * (blockDim.x / 128) + threadIdx.x / 128) * (STAMPS_HEAD + STAMPS);
}
__device__ __forceinline__ unsigned &own_count() {
    __shared__ unsigned counts[8];
    return counts[threadIdx.x / 128];
}

__device__ __forceinline__ void stamps_begin() {
    if (threadIdx.x % 128 == 0) {
        own_count() = 0;
        own_stamps()[1] = nanoseconds_now();
        own_stamps()[2] = clock_now();
    }
    __syncwarp();
}
__device__ __forceinline__ void stamp(Phase phase) {
    if (threadIdx.x % 128 == 0 && own_count() < STAMPS)
        own_stamps()[STAMPS_HEAD + own_count()++] = clock_now() << 3 | (unsigned long long)phase;
    __syncwarp();
}
__device__ __forceinline__ void stamps_end() {
    if (threadIdx.x % 128 == 0) {
        own_stamps()[0] = own_count();
        own_stamps()[3] = nanoseconds_now();
        own_stamps()[4] = clock_now();
    }
}
#define STAMPS_BEGIN() stamps_begin()
#define STAMP(phase) stamp(Phase::phase)
#define STAMPS_END() stamps_end()
#else
#define STAMPS_BEGIN()
#define STAMP(phase)
#define STAMPS_END()
#endif
