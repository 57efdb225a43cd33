// Tensor-core products of a warpgroup (128 threads), by PTX alone; Hopper (sm_90a) only.
//
// A B is added to d (64 x N, float32), with A 64 x 16 and B 16 x N in float16. Lane 4 g + t of warp w, 0 to 3, has
//   d[4 j], d[4 j + 1] = row 16 w + g, columns 8 j + 2 t and the next; d[4 j + 2], d[4 j + 3] = row 16 w + g + 8.
// Operands in shared memory are built of core matrices: eight rows of A (columns of B) x 8 numbers along k, 128 bytes
// in a row, at any multiple of 16 bytes. A from registers is laid out as in mma_f16 (mma.cuh), 16 rows per warp.
//
// The products run asynchronously: wgmma_fence; any number of wgmma_f16; wgmma_commit_group; then wgmma_wait_group with
// every array of sums, so that the compiler reads none of them earlier. wgmma sees the threads' writes to shared memory
// after fence_proxy_async and a barrier.
//
// An asm statement reads every array that it adds to, also where ``clear`` has the product ignore it: an array is
// declared with zeros, or its registers would enter undefined. The assembler drops those zeros.
#pragma once
#include "async_copy.cuh"

// The index of this thread's warpgroup. From the shuffle the compiler knows that it is equal in a whole warp, and keeps
// addresses that depend on it in uniform registers, as wgmma needs them.
__device__ __forceinline__ int warpgroup_index() { return __shfl_sync(~0u, threadIdx.x / 128, 0); }

// A matrix descriptor without swizzle: the address of an operand's first core matrix, and the distances in bytes to the
// next along k (PTX's leading byte offset) and along rows or columns (stride byte offset). In a cluster, an address has the block's number in higher bits than a descriptor has: they are masked
// out.
constexpr unsigned WITHIN_BLOCK = 0x3ffff;
__device__ __forceinline__ unsigned long long make_smem_desc(unsigned address, int next_k, int next_rows) {
    return (address >> 4) | (unsigned long long)(next_k >> 4) << 16 | (unsigned long long)(next_rows >> 4) << 32;
}
// The descriptor of an operand that begins ``bytes`` later.
__device__ __forceinline__ unsigned long long advance_desc(unsigned long long desc, int bytes) {
    return desc + (bytes >> 4);
}

// The descriptor of core matrices with ``bytes`` more between them along k.
__device__ __forceinline__ unsigned long long strided_desc(unsigned long long desc, int bytes) {
    return desc + (long long)(bytes >> 4) * 65536;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A barrier of 128 threads; __syncthreads uses number 0.
__device__ __forceinline__ void warpgroup_barrier(int number) {
    asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory");
}

// Sets the number of registers per thread: a warpgroup releases some, or acquires those that others released.
template <int Registers>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// COUNT registers of sums: their names in an instruction, and the operand list of an asm statement. KIND: "+f" or "+r".
#define TEN(x) "%" #x "0, %" #x "1, %" #x "2, %" #x "3, %" #x "4, %" #x "5, %" #x "6, %" #x "7, %" #x "8, %" #x "9, "
#define SIXTY TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)
#define NAMES_4 "%0, %1, %2, %3"
#define NAMES_18 TEN() "%10, %11, %12, %13, %14, %15, %16, %17"
#define NAMES_20 NAMES_18 ", %18, %19"
#define NAMES_32 TEN() TEN(1) TEN(2) "%30, %31"
#define NAMES_36 NAMES_32 ", %32, %33, %34, %35"
#define NAMES_40 NAMES_36 ", %36, %37, %38, %39"
#define NAMES_48 NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_64 SIXTY "%60, %61, %62, %63"
#define NAMES_80 SIXTY TEN(6) "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_96 SIXTY TEN(6) TEN(7) TEN(8) "%90, %91, %92, %93, %94, %95"
#define NAMES_128 SIXTY TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127"
#define FOUR(KIND, d, i) KIND(d[i]), KIND(d[i + 1]), KIND(d[i + 2]), KIND(d[i + 3])
#define SIXTEEN(KIND, d, i) FOUR(KIND, d, i), FOUR(KIND, d, i + 4), FOUR(KIND, d, i + 8), FOUR(KIND, d, i + 12)
#define SUMS_4(KIND, d) FOUR(KIND, d, 0)
#define SUMS_8(KIND, d) FOUR(KIND, d, 0), FOUR(KIND, d, 4)
#define SUMS_18(KIND, d) SIXTEEN(KIND, d, 0), KIND(d[16]), KIND(d[17])
#define SUMS_20(KIND, d) SIXTEEN(KIND, d, 0), FOUR(KIND, d, 16)
#define SUMS_32(KIND, d) SIXTEEN(KIND, d, 0), SIXTEEN(KIND, d, 16)
#define SUMS_36(KIND, d) SUMS_32(KIND, d), FOUR(KIND, d, 32)
#define SUMS_40(KIND, d) SUMS_36(KIND, d), FOUR(KIND, d, 36)
#define SUMS_48(KIND, d) SUMS_32(KIND, d), SIXTEEN(KIND, d, 32)
#define SUMS_64(KIND, d) SUMS_32(KIND, d), SIXTEEN(KIND, d, 32), SIXTEEN(KIND, d, 48)
#define SUMS_80(KIND, d) SUMS_64(KIND, d), SIXTEEN(KIND, d, 64)
#define SUMS_96(KIND, d) SUMS_64(KIND, d), SIXTEEN(KIND, d, 64), SIXTEEN(KIND, d, 80)
#define SUMS_128(KIND, d) SUMS_96(KIND, d), SIXTEEN(KIND, d, 96), SIXTEEN(KIND, d, 112)

// wgmma_wait_group for one or two arrays of sums. All registers are operands of one asm statement: with a statement for
// each, the compiler would schedule differently.
#define WAIT(TYPE, KIND, COUNT)                                                                                        \
    __device__ __forceinline__ void wgmma_wait_group(TYPE(&d)[COUNT]) {                                                \
        asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS_##COUNT(KIND, d)::"memory");                            \
    }                                                                                                                  \
    __device__ __forceinline__ void wgmma_wait_group(TYPE(&d)[COUNT], TYPE(&e)[COUNT]) {                               \
        asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS_##COUNT(KIND, d), SUMS_##COUNT(KIND, e)::"memory");     \
    }

// A product with both operands in shared memory. clear: d starts from zero. A, B, CLEAR: the operands' numbers, behind
// d's.
#define PRODUCT(FUNCTION, TYPE, KIND, COUNT, SHAPE, SCALES, A, B, CLEAR)                                               \
    __device__ __forceinline__ void FUNCTION(TYPE(&d)[COUNT], unsigned long long a, unsigned long long b, bool clear) {\
        asm volatile("{ .reg .pred grow; setp.eq.s32 grow, " CLEAR ", 0;\n"                                            \
                     "wgmma.mma_async.sync.aligned." SHAPE " {" NAMES_##COUNT "}, " A ", " B ", grow" SCALES "; }"     \
                     : SUMS_##COUNT(KIND, d)                                                                           \
                     : "l"(a), "l"(b), "r"(int(clear)));                                                               \
    }                                                                                                                  \
    WAIT(TYPE, KIND, COUNT)

#define PRODUCT_F16(N, COUNT, ...) \
    PRODUCT(wgmma_f16, float, "+f", COUNT, "m64n" #N "k16.f32.f16.f16", ", 1, 1, 0, 0", __VA_ARGS__)
PRODUCT_F16(8, 4, "%4", "%5", "%6")
PRODUCT_F16(40, 20, "%20", "%21", "%22")
PRODUCT_F16(64, 32, "%32", "%33", "%34")
PRODUCT_F16(80, 40, "%40", "%41", "%42")
PRODUCT_F16(96, 48, "%48", "%49", "%50")
PRODUCT_F16(128, 64, "%64", "%65", "%66")
PRODUCT_F16(160, 80, "%80", "%81", "%82")
PRODUCT_F16(192, 96, "%96", "%97", "%98")
PRODUCT_F16(256, 128, "%128", "%129", "%130")

// Sparse products: A B is added to d (64 x N). A has two of every four columns of a row: 64 x 32 in float16, or 64 x 64
// bytes. a: the kept half in shared memory. meta: metadata (see sparse_pair.py). Selector: 0 or 1, which lanes provide
// it; 0 for bytes, where all lanes do. B is four core matrices along k.
#define PRODUCT_SPARSE(FUNCTION, TYPE, KIND, COUNT, SHAPE, SCALES, A, B, META, CLEAR, SELECTOR)                        \
    template <int Selector>                                                                                            \
    __device__ __forceinline__ void FUNCTION(TYPE(&d)[COUNT], unsigned long long a, unsigned long long b,              \
                                             unsigned meta, bool clear) {                                              \
        asm volatile("{ .reg .pred grow; setp.eq.s32 grow, " CLEAR ", 0;\n"                                            \
                     "wgmma.mma_async.sp.sync.aligned." SHAPE " {" NAMES_##COUNT "}, " A ", " B ", " META              \
                     ", " SELECTOR ", grow" SCALES "; }"                                                               \
                     : SUMS_##COUNT(KIND, d)                                                                           \
                     : "l"(a), "l"(b), "r"(meta), "r"(int(clear)), "n"(Selector));                                     \
    }
#define PRODUCT_F16_SPARSE(N, COUNT, ...) \
    PRODUCT_SPARSE(wgmma_f16_sparse, float, "+f", COUNT, "m64n" #N "k32.f32.f16.f16", ", 1, 1, 0, 0", __VA_ARGS__)
#define PRODUCT_S8_U8_SPARSE(N, COUNT, ...) \
    PRODUCT_SPARSE(wgmma_s8_u8_sparse, int, "+r", COUNT, "m64n" #N "k64.s32.s8.u8", "", __VA_ARGS__)
#define PRODUCTS_SPARSE(N, COUNT, ...) \
    PRODUCT_F16_SPARSE(N, COUNT, __VA_ARGS__) PRODUCT_S8_U8_SPARSE(N, COUNT, __VA_ARGS__)
PRODUCT_F16_SPARSE(40, 20, "%20", "%21", "%22", "%23", "%24")
PRODUCT_F16_SPARSE(80, 40, "%40", "%41", "%42", "%43", "%44")
PRODUCT_F16_SPARSE(96, 48, "%48", "%49", "%50", "%51", "%52")
PRODUCT_F16_SPARSE(160, 80, "%80", "%81", "%82", "%83", "%84")
PRODUCTS_SPARSE(64, 32, "%32", "%33", "%34", "%35", "%36")
PRODUCTS_SPARSE(128, 64, "%64", "%65", "%66", "%67", "%68")
PRODUCTS_SPARSE(192, 96, "%96", "%97", "%98", "%99", "%100")
PRODUCTS_SPARSE(256, 128, "%128", "%129", "%130", "%131", "%132")

// Waits for all products except those of the newest group, so that older ones' metadata registers are free.
__device__ __forceinline__ void wgmma_wait_older_groups() {
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}
// Loads metadata from shared memory. Volatile: earlier loads for all taps would need too many registers.
__device__ __forceinline__ uint2 load_metadata(const void *shared) {
    uint2 words;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(shared_address(shared)));
    return words;
}
__device__ __forceinline__ unsigned load_metadata_word(const void *shared) {
    unsigned word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared_address(shared)));
    return word;
}

// Bytes: A B is added to d (64 x N, int32), with A 64 x 32 signed and B 32 x N unsigned; a row of a core matrix has 16
// numbers along k. The sums are exact.
#define PRODUCT_S8_U8(N, COUNT, ...) PRODUCT(wgmma_s8_u8, int, "+r", COUNT, "m64n" #N "k32.s32.s8.u8", "", __VA_ARGS__)
PRODUCT_S8_U8(64, 32, "%32", "%33", "%34")
PRODUCT_S8_U8(128, 64, "%64", "%65", "%66")
PRODUCT_S8_U8(192, 96, "%96", "%97", "%98")
PRODUCT_S8_U8(256, 128, "%128", "%129", "%130")

// A from registers. A, B, CLEAR: as above; A is four operands.
#define PRODUCT_F16_REGISTERS(N, COUNT, A, B, CLEAR)                                                                   \
    __device__ __forceinline__ void wgmma_f16(float(&d)[COUNT], const uint4 &a, unsigned long long b, bool clear) {    \
        asm volatile("{ .reg .pred grow; setp.eq.s32 grow, " CLEAR ", 0;\n"                                            \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" NAMES_##COUNT "}, {" A "}, " B         \
                     ", grow, 1, 1, 0; }"                                                                              \
                     : SUMS_##COUNT("+f", d)                                                                           \
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(int(clear)));                               \
    }
PRODUCT_F16_REGISTERS(8, 4, "%4, %5, %6, %7", "%8", "%9")
PRODUCT_F16_REGISTERS(72, 36, "%36, %37, %38, %39", "%40", "%41")
WAIT(float, "+f", 36)
WAIT(float, "+f", 8)

// The same product with float16 sums, two columns per register: d[2 j] = row g, columns 8 j + 2 t and the next;
// d[2 j + 1] = row g + 8.
__device__ __forceinline__ void wgmma_f16(unsigned (&d)[18], const uint4 &a, unsigned long long b, bool clear) {
    asm volatile("{ .reg .pred grow; setp.eq.s32 grow, %23, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n72k16.f16.f16.f16 {" NAMES_18 "}, {%18, %19, %20, %21}, %22, grow, "
                 "1, 1, 0; }"
                 : SUMS_18("+r", d)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(int(clear)));
}
WAIT(unsigned, "+r", 18)
