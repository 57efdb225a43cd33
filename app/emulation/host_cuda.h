// What kernels need of CUDA and of common.cuh, for the processor: a block's threads are contexts that run one after the
// other, each up to the next barrier of its block or warp. The order in which they run turns round at every barrier.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static

#include "half.cuh"

typedef unsigned char uint8;
typedef float float32;
typedef double float64;

struct Index {
    unsigned x, y, z;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

namespace host {
inline void (*before_failing)(void *frame) = [](void *) {};

// Ends the program: no card would go on here, or not to a defined result.
[[noreturn]] __attribute__((noinline)) inline void fail(const char *reason) {
    dprintf(2, "FAULT %s\n", reason);
    before_failing(__builtin_frame_address(0));
    abort();
}
}  // namespace host

using std::exp;
using std::max;
using std::min;
using std::tanh;

template <int Window, int Stride, int Count, int Size>
inline int pixels_inside(int at) {
    return min(Window, Size - at * Stride);
}
template <int Padding>
inline bool is_pixel(int row, int column, int height, int width) {
    return Padding == 0 || ((unsigned)row < (unsigned)height && (unsigned)column < (unsigned)width);
}
template <bool Max, typename T>
inline T pool_step(T so_far, T value) {
    return !Max ? so_far + value : value > so_far || value != value ? value : so_far;
}
template <bool Max, typename T>
inline T pool_finish(T so_far, int count) {
    return Max ? so_far : so_far / T(count);
}
inline float fused_multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
inline float __int_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline double fused_multiply_add(double a, double b, double c) { return std::fma(a, b, c); }
using std::fma;
inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }
template <typename T, typename U>
constexpr bool same_type = false;
template <typename T>
constexpr bool same_type<T, T> = true;
template <typename T>
inline bool wins(T value, int index, T best, int best_index) {
    const bool value_nan = value != value, best_nan = best != best;
    if (value_nan || best_nan) return value_nan && (!best_nan || index < best_index);
    return value > best || (value == best && index < best_index);
}
// Compiled without contraction: each is rounded by itself.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
#include "activations.cuh"
template <bool WithBias, typename Function, typename T>
inline T epilogue(T sum, T bias) {
    return Function::of(WithBias ? sum + bias : sum);
}
template <int Count, typename T>
inline void store_aligned(T *y, const float *values) {
    if ((uintptr_t)y % (Count * sizeof(T))) host::fail("stores several outputs at once at an address that is no multiple");
    for (int i = 0; i < Count; i++) y[i] = T(values[i]);
}
template <typename T>
inline void store2(T *y, const float *values) { store_aligned<2>(y, values); }
template <typename T>
inline void store4(T *y, const float *values) { store_aligned<4>(y, values); }
template <typename T, int Count>
inline void store_run(T *y, const float (&values)[Count]) { store_aligned<Count>(y, values); }
inline unsigned __cvta_generic_to_shared(const void *) { host::fail("asks for an address in shared memory"); }

namespace host {
enum Awaited { NOTHING, OF_WARP, OF_BLOCK };  // whose other threads
struct Thread {
    ucontext_t first;  // how it begins; from then on it goes on by jumps, which cost no system call
    jmp_buf place;
    std::vector<char> stack = std::vector<char>(64 << 10);
    bool begun = false, done = false;
    Awaited awaited = NOTHING;
};
inline ucontext_t unused;
inline jmp_buf scheduler;
inline Thread *current;
inline void (*body)(void **);
inline void **arguments;

constexpr std::size_t FENCE = std::size_t(1) << 30;  // bytes on either side of an array that nobody may touch

// Memory between two fences, full of NaN. It ends at the fence, but for less than 16 bytes; low: it begins there.
struct Fenced {
    std::size_t bytes, whole;
    unsigned char *map, *start;

    explicit Fenced(std::size_t size, bool low = false) : bytes(size) {
        const std::size_t page = sysconf(_SC_PAGESIZE), kept = (std::max<std::size_t>(size, 1) + 15) / 16 * 16;
        const std::size_t pages = (kept + page - 1) / page * page;
        whole = pages + 2 * FENCE;
        map = (unsigned char *)mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED || mprotect(map + FENCE, pages, PROT_READ | PROT_WRITE)) fail("found no memory");
        std::fill_n(map + FENCE, pages, 0xFF);
        start = map + FENCE + (low ? 0 : pages - kept);
    }
    Fenced(const Fenced &) = delete;
    ~Fenced() { munmap(map, whole); }

    bool near(const void *place) const { return map <= place && place < map + whole; }
};
inline unsigned char *shared;  // of the block, without a size in the kernel
inline const Fenced *all_shared;

inline void yield() {
    if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}

inline void wait(Awaited others) {
    current->awaited = others;
    yield();
}

inline void enter() {
    for (;;) {  // block after block
        body(arguments);
        current->done = true;
        yield();
    }
}

inline void go_on(Thread &thread) {
    current = &thread;
    if (_setjmp(scheduler)) return;
    if (thread.begun) _longjmp(thread.place, 1);
    thread.begun = true;
    getcontext(&thread.first);
    thread.first.uc_stack.ss_sp = thread.stack.data();
    thread.first.uc_stack.ss_size = thread.stack.size();
    makecontext(&thread.first, enter, 0);
    swapcontext(&unused, &thread.first);
}

// Lets threads first to last - 1 go on if those that are not done all wait for one another.
inline void release(std::vector<Thread> &all, int first, int last, Awaited others) {
    for (int i = first; i < last; i++)
        if (!all[i].done && all[i].awaited != others) return;
    for (int i = first; i < last; i++) all[i].awaited = NOTHING;
}

inline void run_block(std::vector<Thread> &all) {
    const int threads = all.size();
    if (shared) std::fill_n(shared, all_shared->bytes, 0xFF);
    for (Thread &thread : all) thread.done = false;
    for (int turn = 0, left = threads; left > 0; turn++) {
        bool idle = true;
        for (int i = 0; i < threads; i++) {
            const int at = turn % 2 ? threads - 1 - i : i;
            if (all[at].done || all[at].awaited != NOTHING) continue;
            threadIdx = {(unsigned)at, 0, 0};
            go_on(all[at]);
            left -= all[at].done;
            idle = false;
        }
        if (idle) fail("waits at a barrier that not all threads of its block (or warp) come to");
        for (int warp = 0; warp < threads; warp += 32) release(all, warp, min(warp + 32, threads), OF_WARP);
        release(all, 0, threads, OF_BLOCK);
    }
}

template <class... Types, std::size_t... At>
void call(void (*kernel)(Types...), void **values, std::index_sequence<At...>) {
    kernel(*(Types *)values[At]...);
}
template <class... Types>
void call(void (*kernel)(Types...), void **values) {
    call(kernel, values, std::index_sequence_for<Types...>());
}

// Runs the kernel, block after block. bytes: of shared memory; values: the addresses of its arguments.
template <class... Types>
void launch(void (*kernel)(Types...), Index grid, int threads, std::size_t bytes, void **values, bool low = false) {
    static void (*called)(Types...);
    called = kernel, arguments = values;
    body = [](void **all) { call(called, all); };
    std::vector<Thread> all(threads);
    const Fenced memory(bytes, low);
    all_shared = &memory, shared = bytes ? memory.start : nullptr;
    gridDim = grid, blockDim = {(unsigned)threads, 1, 1};
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) run_block(all);
    all_shared = nullptr;
}
}  // namespace host

inline void __syncthreads() { host::wait(host::OF_BLOCK); }

// All threads of a warp must come to a shuffle. from: own lane → the lane whose value it gets.
template <typename T, typename Lane>
inline T host_shuffle(T value, Lane from) {
    static T left[1024];
    const unsigned own = threadIdx.x;
    left[own] = value;
    host::wait(host::OF_WARP);
    const T found = left[own / 32 * 32 + from(own % 32)];
    host::wait(host::OF_WARP);
    return found;
}
template <typename T>
inline T __shfl_xor_sync(unsigned, T value, int apart) {
    return host_shuffle(value, [=](int lane) { return lane ^ apart; });
}
template <typename T>
inline T __shfl_down_sync(unsigned, T value, int apart, int width = 32) {
    return host_shuffle(value, [=](int lane) { return lane % width + apart < width ? lane + apart : lane; });
}
