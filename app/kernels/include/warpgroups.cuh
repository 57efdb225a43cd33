// Which warpgroup a thread belongs to.
#pragma once

// The index of this thread's warpgroup. Through a shuffle the compiler knows that it is the same in the whole warp, and
// keeps addresses that depend on it in uniform registers, where wgmma wants them.
__device__ __forceinline__ int warpgroup_index() { return __shfl_sync(~0u, threadIdx.x / 128, 0); }
