// Words of eight bytes in page-locked host memory: four bytes of data, then a flag. A word is read and written at once,
// so a reader that sees its flag sees its data, without a fence (as in NCCL's protocol LL).
#pragma once

constexpr unsigned NUMBERS = 0xfffffff;  // a flag is a request's number (its low 28 bits) * 16 + its number of images

// Loads a thread's two words. Neighbouring threads read neighbouring words, so a warp reads four whole lines: the bus
// transfers a line again for each access to a part of it.
__device__ __forceinline__ ulonglong2 load_words(const unsigned long long *words, int t) {
    ulonglong2 found;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(found.x), "=l"(found.y) : "l"(words + 2 * t) : "memory");
    return found;
}

// Returns whether both words belong to request ``number``, and sets ``flag`` to its flag.
__device__ __forceinline__ bool arrived(const ulonglong2 &words, unsigned number, unsigned &flag) {
    flag = unsigned(words.x >> 32);
    return flag >> 4 == (number & NUMBERS) && flag == unsigned(words.y >> 32);
}

__device__ __forceinline__ void store_word(unsigned long long *target, unsigned data, unsigned flag) {
    const unsigned long long word = (unsigned long long)flag << 32 | data;
    asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(target), "l"(word) : "memory");
}
