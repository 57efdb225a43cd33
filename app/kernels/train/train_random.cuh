// Random bits as in app/training/random_bits.py: a pure function of a key and an index, in integer arithmetic.
#pragma once

typedef unsigned long long bits64;

constexpr bits64 GOLDEN = 0x9E3779B97F4A7C15ull;

__device__ __forceinline__ bits64 mix(bits64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// The first random bits of an item, an image's index in the training set. key: from random_bits.stream_key.
__device__ __forceinline__ bits64 item_bits(bits64 key, int item) { return mix(key + (bits64(item) + 1) * GOLDEN); }

__device__ __forceinline__ bits64 random_bits(bits64 of_item, int number) {
    return mix(of_item + (bits64(number) + 1) * GOLDEN);
}

// Returns a whole number from 0 to below - 1.
__device__ __forceinline__ int whole(bits64 bits, int below) { return int((bits >> 32) * bits64(below) >> 32); }
