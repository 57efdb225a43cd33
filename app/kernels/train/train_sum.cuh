// Sums over a block's threads, in an order that depends only on their number, so they are bit-identical every time.
#pragma once

// blockDim.x: a multiple of 32, at most 1,024. All threads must call it; thread 0 gets the sum.
template <typename T>
__device__ __forceinline__ T block_sum(T value) {
    __shared__ T of_warps[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffff, value, apart);
    __syncthreads();  // all threads have read the sum before
    if (lane == 0) of_warps[warp] = value;
    __syncthreads();
    if (warp > 0) return value;
    value = lane < warps ? of_warps[lane] : T(0);
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffff, value, apart);
    return value;
}
