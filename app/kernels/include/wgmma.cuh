// Tensor-core products of a warpgroup (128 threads), by PTX alone; Hopper (sm_90a) only.
//
// d (64 x N, float32) grows by A B with A 64 x 16, B 16 x N, both float16. Warp w of the four, lane 4 g + t holds
//   d[4 j], d[4 j + 1] = row 16 w + g, columns 8 j + 2 t and the next; d[4 j + 2], d[4 j + 3] = row 16 w + g + 8.
// Operands in shared memory are built of core matrices: eight rows of A (columns of B) x 8 numbers along k, 128 bytes
// in a row, at any multiple of 16 bytes. A from registers is laid out as in mma_f16 (mma.cuh), 16 rows per warp.
//
// The products run asynchronously: wgmma_fence; any number of wgmma_f16; wgmma_commit_group; then wgmma_wait_group with
// every array of sums, so that the compiler reads none of them earlier. wgmma sees the threads' writes to shared memory
// after fence_proxy_async and a barrier.
//
// An asm statement reads every array that it adds to, also where ``clear`` has the product ignore it: an array is declared
// with zeros, or its registers would enter undefined. The assembler drops those zeros.
#pragma once
#include "async_copy.cuh"

// A matrix descriptor: where an operand's core matrices lie: the first one, and how far the next is along k and along rows
// (columns). In a cluster, an address has the block's number above what a descriptor has room for: cut it off.
constexpr unsigned WITHIN_BLOCK = 0x3ffff;
__device__ __forceinline__ unsigned long long make_smem_desc(unsigned address, int next_k, int next_rows) {
    return (address >> 4) | (unsigned long long)(next_k >> 4) << 16 | (unsigned long long)(next_rows >> 4) << 32;
}
// The descriptor of the same operand, ``bytes`` further on.
__device__ __forceinline__ unsigned long long advance_desc(unsigned long long desc, int bytes) {
    return desc + (bytes >> 4);
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A barrier among 128 threads; number 0 is __syncthreads'.
__device__ __forceinline__ void warpgroup_barrier(int number) {
    asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory");
}

// Names of ten registers in an instruction, and lists of operands in an asm statement.
#define TEN(x) "%" #x "0, %" #x "1, %" #x "2, %" #x "3, %" #x "4, %" #x "5, %" #x "6, %" #x "7, %" #x "8, %" #x "9, "
#define FOUR_OF(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN_OF(d, i) FOUR_OF(d, i), FOUR_OF(d, i + 4), FOUR_OF(d, i + 8), FOUR_OF(d, i + 12)
#define SIXTY_FOUR_OF(d, i) SIXTEEN_OF(d, i), SIXTEEN_OF(d, i + 16), SIXTEEN_OF(d, i + 32), SIXTEEN_OF(d, i + 48)
#define FOUR_WORDS(d, i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define SIXTEEN_WORDS(d, i) FOUR_WORDS(d, i), FOUR_WORDS(d, i + 4), FOUR_WORDS(d, i + 8), FOUR_WORDS(d, i + 12)
#define SIXTY_FOUR_WORDS(d, i) SIXTEEN_WORDS(d, i), SIXTEEN_WORDS(d, i + 16), SIXTEEN_WORDS(d, i + 32), SIXTEEN_WORDS(d, i + 48)

// N = 72, A from registers. clear: d starts from zero.
__device__ __forceinline__ void wgmma_f16(float (&d)[36], const uint4 &a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %41, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 {" TEN() TEN(1) TEN(2)
                 "%30, %31, %32, %33, %34, %35}, {%36, %37, %38, %39}, %40, grow, 1, 1, 0; }"
                 : SIXTEEN_OF(d, 0), SIXTEEN_OF(d, 16), FOUR_OF(d, 32)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(int(clear)));
}

// The same with sums in float16, two columns in a register: d[2 j] = row g, columns 8 j + 2 t and the next; d[2 j + 1] =
// row g + 8.
__device__ __forceinline__ void wgmma_f16(unsigned (&d)[18], const uint4 &a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %23, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n72k16.f16.f16.f16 {" TEN()
                 "%10, %11, %12, %13, %14, %15, %16, %17}, {%18, %19, %20, %21}, %22, grow, 1, 1, 0; }"
                 : SIXTEEN_WORDS(d, 0), "+r"(d[16]), "+r"(d[17])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(int(clear)));
}

// N = 8, 40, 64 and 80, both from shared memory.
__device__ __forceinline__ void wgmma_f16(float (&d)[4], unsigned long long a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %6, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, grow, 1, 1, 0, 0; }"
                 : FOUR_OF(d, 0)
                 : "l"(a), "l"(b), "r"(int(clear)));
}
__device__ __forceinline__ void wgmma_f16(float (&d)[20], unsigned long long a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %22, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n40k16.f32.f16.f16 {" TEN()
                 "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19}, %20, %21, grow, 1, 1, 0, 0; }"
                 : SIXTEEN_OF(d, 0), FOUR_OF(d, 16)
                 : "l"(a), "l"(b), "r"(int(clear)));
}
__device__ __forceinline__ void wgmma_f16(float (&d)[32], unsigned long long a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" TEN() TEN(1) TEN(2)
                 "%30, %31}, %32, %33, grow, 1, 1, 0, 0; }"
                 : SIXTEEN_OF(d, 0), SIXTEEN_OF(d, 16)
                 : "l"(a), "l"(b), "r"(int(clear)));
}
__device__ __forceinline__ void wgmma_f16(float (&d)[40], unsigned long long a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %42, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 {" TEN() TEN(1) TEN(2)
                 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39}, %40, %41, grow, 1, 1, 0, 0; }"
                 : SIXTEEN_OF(d, 0), SIXTEEN_OF(d, 16), FOUR_OF(d, 32), FOUR_OF(d, 36)
                 : "l"(a), "l"(b), "r"(int(clear)));
}

// N = 128, both from shared memory.
__device__ __forceinline__ void wgmma_f16(float (&d)[64], unsigned long long a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)
                 "%60, %61, %62, %63}, %64, %65, grow, 1, 1, 0, 0; }"
                 : SIXTY_FOUR_OF(d, 0)
                 : "l"(a), "l"(b), "r"(int(clear)));
}

// N = 256, both from shared memory.
__device__ __forceinline__ void wgmma_f16(float (&d)[128], unsigned long long a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)
                 TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11)
                 "%120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, grow, 1, 1, 0, 0; }"
                 : SIXTY_FOUR_OF(d, 0), SIXTY_FOUR_OF(d, 64)
                 : "l"(a), "l"(b), "r"(int(clear)));
}

// As above for bytes: d (64 x N, int32) grows by A B, A 64 x 32 signed, B 32 x N unsigned; 16 numbers along k are a row of
// a core matrix. The sums are exact.

__device__ __forceinline__ void wgmma_s8_u8(int (&d)[32], unsigned long long a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.u8 {" TEN() TEN(1) TEN(2)
                 "%30, %31}, %32, %33, grow; }"
                 : SIXTEEN_WORDS(d, 0), SIXTEEN_WORDS(d, 16)
                 : "l"(a), "l"(b), "r"(int(clear)));
}
__device__ __forceinline__ void wgmma_s8_u8(int (&d)[64], unsigned long long a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.u8 {" TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)
                 "%60, %61, %62, %63}, %64, %65, grow; }"
                 : SIXTY_FOUR_WORDS(d, 0)
                 : "l"(a), "l"(b), "r"(int(clear)));
}
__device__ __forceinline__ void wgmma_s8_u8(int (&d)[96], unsigned long long a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k32.s32.s8.u8 {" TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)
                 TEN(6) TEN(7) TEN(8) "%90, %91, %92, %93, %94, %95}, %96, %97, grow; }"
                 : SIXTY_FOUR_WORDS(d, 0), SIXTEEN_WORDS(d, 64), SIXTEEN_WORDS(d, 80)
                 : "l"(a), "l"(b), "r"(int(clear)));
}
__device__ __forceinline__ void wgmma_s8_u8(int (&d)[128], unsigned long long a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.u8 {" TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)
                 TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11)
                 "%120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, grow; }"
                 : SIXTY_FOUR_WORDS(d, 0), SIXTY_FOUR_WORDS(d, 64)
                 : "l"(a), "l"(b), "r"(int(clear)));
}

__device__ __forceinline__ void wgmma_wait_group(float (&d)[36], float (&e)[36]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : SIXTEEN_OF(d, 0), SIXTEEN_OF(d, 16), FOUR_OF(d, 32), SIXTEEN_OF(e, 0), SIXTEEN_OF(e, 16), FOUR_OF(e, 32)
                 :
                 : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(unsigned (&d)[18], unsigned (&e)[18]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : SIXTEEN_WORDS(d, 0), "+r"(d[16]), "+r"(d[17]), SIXTEEN_WORDS(e, 0), "+r"(e[16]), "+r"(e[17])
                 :
                 : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(float (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SIXTEEN_OF(d, 0), SIXTEEN_OF(d, 16) : : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(float (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SIXTY_FOUR_OF(d, 0) : : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SIXTY_FOUR_OF(d, 0), SIXTY_FOUR_OF(d, 64) : : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(float (&d)[4]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : FOUR_OF(d, 0) : : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(float (&d)[4], float (&e)[4]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : FOUR_OF(d, 0), FOUR_OF(e, 0) : : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(float (&d)[20]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SIXTEEN_OF(d, 0), FOUR_OF(d, 16) : : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(float (&d)[20], float (&e)[20]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : SIXTEEN_OF(d, 0), FOUR_OF(d, 16), SIXTEEN_OF(e, 0), FOUR_OF(e, 16)
                 :
                 : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(float (&d)[40]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : SIXTEEN_OF(d, 0), SIXTEEN_OF(d, 16), FOUR_OF(d, 32), FOUR_OF(d, 36)
                 :
                 : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(float (&d)[40], float (&e)[40]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : SIXTEEN_OF(d, 0), SIXTEEN_OF(d, 16), FOUR_OF(d, 32), FOUR_OF(d, 36), SIXTEEN_OF(e, 0),
                   SIXTEEN_OF(e, 16), FOUR_OF(e, 32), FOUR_OF(e, 36)
                 :
                 : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(int (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SIXTEEN_WORDS(d, 0), SIXTEEN_WORDS(d, 16) : : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(int (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SIXTY_FOUR_WORDS(d, 0) : : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(int (&d)[96]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : SIXTY_FOUR_WORDS(d, 0), SIXTEEN_WORDS(d, 64), SIXTEEN_WORDS(d, 80)
                 :
                 : "memory");
}
__device__ __forceinline__ void wgmma_wait_group(int (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SIXTY_FOUR_WORDS(d, 0), SIXTY_FOUR_WORDS(d, 64) : : "memory");
}
