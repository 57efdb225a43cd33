// What kernels need of CUDA and of common.cuh, for the processor: a block's threads are contexts that run one after the
// other, each up to the next barrier of its block or warp. The order in which they run turns round at every barrier.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
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
template <bool WithBias, typename Function>
inline float epilogue(float sum, float bias) {
    return Function::of(WithBias ? sum + bias : sum);
}
template <int Count, typename T>
inline void store_aligned(T *y, const float *values) {
    if ((uintptr_t)y % (Count * sizeof(T))) abort();
    for (int i = 0; i < Count; i++) y[i] = T(values[i]);
}
template <typename T>
inline void store2(T *y, const float *values) { store_aligned<2>(y, values); }
template <typename T>
inline void store4(T *y, const float *values) { store_aligned<4>(y, values); }
inline unsigned __cvta_generic_to_shared(const void *) { abort(); }

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
inline void (*fresh)() = [] {};  // called before each block

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
    fresh();
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
        if (idle) abort();  // a barrier that not all come to
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
}  // namespace host

inline void __syncthreads() { host::wait(host::OF_BLOCK); }

// All threads of a warp must come here.
template <typename T>
inline T __shfl_xor_sync(unsigned, T value, int apart) {
    static T left[1024];
    const unsigned own = threadIdx.x;
    left[own] = value;
    host::wait(host::OF_WARP);
    const T found = left[own ^ apart];
    host::wait(host::OF_WARP);
    return found;
}

// The shared memory of a kernel that declares it without a size; full of NaN before each block.
#define HOST_SHARED(type, bytes)                                                                          \
    alignas(128) type memory[(bytes) / sizeof(type)];                                                     \
    static bool poisoned = (host::fresh = [] { std::fill_n((unsigned char *)memory, bytes, 0xFF); }, true);

// The launch of the kernel that the file including this defines.
#define HOST_LAUNCH(kernel)                                                                             \
    extern "C" void host_launch(unsigned x, unsigned y, unsigned z, int threads, void **values) {       \
        host::body = [](void **all) { host::call(kernel, all); };                                       \
        host::arguments = values;                                                                       \
        std::vector<host::Thread> all(threads);                                                         \
        gridDim = {x, y, z}, blockDim = {(unsigned)threads, 1, 1};                                      \
        for (blockIdx.z = 0; blockIdx.z < z; blockIdx.z++)                                              \
            for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++)                                          \
                for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++) host::run_block(all);                \
    }
