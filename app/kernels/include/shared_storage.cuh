// A block's dynamic shared memory, laid out by the kernel's struct SharedStorage.
//
// The registry row needs the size before anything is compiled, to choose kernels and parameters that fit a GPU. So it
// computes SHARED_BYTES itself; a kernel whose struct has another size does not compile.
#pragma once

extern __shared__ __align__(128) unsigned char memory[];

template <typename SharedStorage>
__device__ __forceinline__ SharedStorage &shared_storage() {
    static_assert(sizeof(SharedStorage) == SHARED_BYTES, "the row asks for another size of shared memory");
    return *(SharedStorage *)memory;
}
