// A block's dynamic shared memory, laid out by the kernel's struct SharedStorage.
//
// The row has to know its size before there is a compiler (which kernels fit a card, which defaults do), so it computes
// SHARED_BYTES by itself. A kernel for which it comes to another size than the struct has does not compile.
#pragma once

extern __shared__ __align__(128) unsigned char memory[];

template <typename SharedStorage>
__device__ __forceinline__ SharedStorage &shared_storage() {
    static_assert(sizeof(SharedStorage) == SHARED_BYTES, "the row asks for another size of shared memory");
    return *(SharedStorage *)memory;
}
