// Runs the threads of a block, or of a cluster of blocks, one after another: each until it waits for other threads. When all
// of them wait, the order in which they run is reversed.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

struct Index {
    unsigned x, y, z;
};
typedef Index dim3, uint3;
inline Index threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace host {
inline void (*before_failing)(void *frame) = [](void *) {};

// Ends the program with a reason, where a GPU would stop or give an undefined result.
[[noreturn]] __attribute__((noinline)) inline void fail(const char *reason) {
    dprintf(2, "FAULT %s\n", reason);
    before_failing(__builtin_frame_address(0));
    abort();
}

// Returns a pointer of which the compiler knows nothing.
template <typename T>
[[gnu::noipa]] T *unknown(T *place) { return place; }

constexpr std::size_t STACK = 640 << 10;  // bytes of a thread's stack: on a GPU its local memory has up to 512 KB
constexpr std::size_t FENCE = std::size_t(1) << 30;  // bytes of the guard pages on either side of an array

// Memory between guard pages, if poisoned full of NaN. It ends less than 16 bytes before one; low: it begins at one.
struct Fenced {
    std::size_t bytes, whole;
    unsigned char *map, *start;

    explicit Fenced(std::size_t size, bool low = false, bool poisoned = true) : bytes(size) {
        const std::size_t page = sysconf(_SC_PAGESIZE), kept = (std::max<std::size_t>(size, 1) + 15) / 16 * 16;
        const std::size_t pages = (kept + page - 1) / page * page;
        whole = pages + 2 * FENCE;
        map = (unsigned char *)mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED || mprotect(map + FENCE, pages, PROT_READ | PROT_WRITE)) fail("found no memory");
        if (poisoned) std::fill_n(map + FENCE, pages, 0xFF);
        start = map + FENCE + (low ? 0 : pages - kept);
    }
    Fenced(const Fenced &) = delete;
    ~Fenced() { munmap(map, whole); }

    bool near(const void *place) const { return map <= place && place < map + whole; }
};

// Defined by the linker: begin and end of the shared arrays of fixed size, if there are any.
extern "C" unsigned char __start_shared_arrays[] __attribute__((weak)), __stop_shared_arrays[] __attribute__((weak));

// Fills shared memory with values that are NaN in every type, but not those of other memory, whose bytes are all 0xFF.
inline void poison_shared(unsigned char *start, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i++) start[i] = i % 2 ? 0xFF : 0xFE;
}

struct Block {
    unsigned rank;  // in its cluster
    Fenced memory;  // its shared memory
    Index index = {};
    int left = 0;                      // threads that have not returned
    bool begun = false;
    std::vector<unsigned char> proxy;  // shared memory as the tensor cores see it: host_bulk.h
    bool fenced = false;
    int copies = 0;  // bulk copies into its shared memory that are not yet made
    struct NamedBarrier {
        unsigned arrived, turn;
    } named_barriers[32] = {};  // named barriers of 128 threads; from 16 on, those of wait_for_products

    Block(unsigned number, std::size_t bytes, bool low) : rank(number), memory(bytes, low) {}
};

struct Condition {
    bool (*holds)(void *of, unsigned value);
    void *of;
    unsigned value;
    bool operator()() const { return holds(of, value); }
};
enum Awaited { NOTHING, OF_WARP, OF_BLOCK, A_CONDITION };  // OF_WARP, OF_BLOCK: all other threads of it
struct Thread {
    ucontext_t first;  // starts it; later it continues by longjmp, which costs no system call
    jmp_buf place;
    std::unique_ptr<Fenced> stack = std::make_unique<Fenced>(STACK, true, false);
    bool begun = false, done = false, deadlocked = false;
    Awaited awaited = NOTHING;
    unsigned mask = 0;  // OF_WARP: the lanes that wait for each other
    Condition condition = {};
    const char *deadlock_error = nullptr;  // the error if the condition never holds
    Block *block = nullptr;
    unsigned cluster_arrivals = 0;
};
constexpr int MOST_THREADS = 16 * 1024;  // of a cluster
inline ucontext_t unused;
inline jmp_buf scheduler;
inline std::vector<Thread> *threads;  // of the current cluster, block after block
inline Thread *current;
inline void (*body)(void **);
inline void **arguments;
inline bool reversed = false;  // blocks and threads run in the opposite order, and pause before stores
inline unsigned char *shared;  // dynamic shared memory of the current block
inline const Fenced *all_shared;

inline unsigned block_threads() { return blockDim.x * blockDim.y * blockDim.z; }

// Returns the current thread's number in the cluster.
inline int number() { return int(current - threads->data()); }

inline void yield() {
    if (!_setjmp(current->place)) _longjmp(scheduler, 1);
    if (current->deadlocked) fail(current->deadlock_error);
}

inline void wait(Awaited others, unsigned mask = ~0u) {
    current->awaited = others, current->mask = mask;
    current->deadlock_error = "waits at a barrier that not all threads of its block (or warp) come to";
    yield();
}

inline void wait_until(Condition condition, const char *deadlock_error) {
    if (condition()) return;
    current->awaited = A_CONDITION;
    current->condition = condition;
    current->deadlock_error = deadlock_error;
    yield();
}

// Waits until 128 threads have called this for the same barrier.
inline void wait_for_128_threads(int which) {
    Block::NamedBarrier &own = current->block->named_barriers[which];
    const unsigned turn = own.turn;
    if (++own.arrived == 128) own.arrived = 0, own.turn++;
    wait_until({[](void *of, unsigned turn) { return ((Block::NamedBarrier *)of)->turn != turn; }, &own, turn},
               "waits at a barrier that not all of 128 threads come to");
}

inline void run_thread() {
    for (;;) {  // one iteration for each block
        body(arguments);
        current->done = true;
        yield();
    }
}

inline void resume_thread(Thread &thread) {
    current = &thread;
    Block &block = *thread.block;
    const unsigned of_block = number() % block_threads(), plane = blockDim.x * blockDim.y;
    threadIdx = {of_block % blockDim.x, of_block % plane / blockDim.x, of_block / plane}, blockIdx = block.index;
    all_shared = &block.memory, shared = block.memory.start;
    block.begun = true;
    if (_setjmp(scheduler)) return;
    if (thread.begun) _longjmp(thread.place, 1);
    thread.begun = true;
    getcontext(&thread.first);
    thread.first.uc_stack.ss_sp = thread.stack->start;
    thread.first.uc_stack.ss_size = STACK - number() % 256 * 448;  // so that stacks share no cache lines
    makecontext(&thread.first, run_thread, 0);
    swapcontext(&unused, &thread.first);
}

// Releases threads first to last - 1, of a warp those of the mask, if all of them that have not returned wait for each other.
inline void release_if_all_wait(int first, int last, Awaited others, unsigned mask = ~0u) {
    const auto named = [=](int i) { return mask >> (i - first) % 32 & 1 && !(*threads)[i].done; };
    for (int i = first; i < last; i++)
        if (named(i) && ((*threads)[i].awaited != others || (*threads)[i].mask != mask)) return;
    for (int i = first; i < last; i++)
        if (named(i)) (*threads)[i].awaited = NOTHING;
}

inline void release_waiting_threads() {
    const int all = threads->size(), each = block_threads();
    for (int block = 0; block < all; block += each) {
        for (int i = block; i < block + each; i++) {
            const Thread &lane = (*threads)[i];
            const int warp = i - (i - block) % 32;
            if (!lane.done && lane.awaited == OF_WARP)
                release_if_all_wait(warp, std::min(warp + 32, block + each), OF_WARP, lane.mask);
        }
        release_if_all_wait(block, block + each, OF_BLOCK);
    }
    for (Thread &thread : *threads)
        if (!thread.done && thread.awaited == A_CONDITION && thread.condition()) thread.awaited = NOTHING;
}

// Runs each thread that waits for nothing; returns whether there was one.
inline bool run_ready_threads(bool backwards) {
    bool any = false;
    const int all = threads->size();
    for (int i = 0; i < all; i++) {
        Thread &thread = (*threads)[backwards ? all - 1 - i : i];
        if (thread.done || thread.awaited != NOTHING) continue;
        resume_thread(thread);
        any = true;
        if (!thread.done) continue;
        if (--thread.block->left == 0 && thread.block->copies)
            fail("ends while a copy into its shared memory is under way");
    }
    return any;
}

inline bool all_done() {
    return std::all_of(threads->begin(), threads->end(), [](const Thread &thread) { return thread.done; });
}

inline void run_cluster() {
    for (Thread &thread : *threads) thread.done = false, thread.awaited = NOTHING, thread.cluster_arrivals = 0;
    for (bool backwards = reversed; !all_done(); backwards = !backwards) {
        if (!run_ready_threads(backwards)) {
            Thread &stuck = *std::find_if(threads->begin(), threads->end(), [](auto &one) { return !one.done; });
            stuck.deadlocked = true;
            resume_thread(stuck);
        }
        release_waiting_threads();
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

struct Shape {
    Index grid, block;
    std::size_t bytes;     // of dynamic shared memory
    unsigned cluster = 1;  // blocks of a cluster, neighbours along x
};

// Runs the kernel, cluster after cluster.
inline void run_grid(const Shape &shape, bool low) {
    gridDim = shape.grid, blockDim = shape.block;
    const int each = block_threads();
    std::vector<Thread> all(each * shape.cluster);
    std::vector<std::unique_ptr<Block>> blocks;
    for (unsigned rank = 0; rank < shape.cluster; rank++) {
        blocks.push_back(std::make_unique<Block>(rank, shape.bytes, low));
        for (int i = 0; i < each; i++) all[rank * each + i].block = blocks.back().get();
    }
    threads = &all;
    Index at = {};
    for (at.z = 0; at.z < gridDim.z; at.z++)
        for (at.y = 0; at.y < gridDim.y; at.y++)
            for (at.x = 0; at.x < gridDim.x; at.x += shape.cluster) {
                for (const auto &block : blocks) {
                    const Index last = {gridDim.x - shape.cluster, gridDim.y - 1, gridDim.z - 1};
                    const Index first = reversed ? Index{last.x - at.x, last.y - at.y, last.z - at.z} : at;
                    block->index = {first.x + block->rank, first.y, first.z};
                    block->left = each, block->begun = block->fenced = false;
                    poison_shared(block->memory.start, block->memory.bytes);
                    block->proxy.assign(block->memory.start, block->memory.start + block->memory.bytes);
                }
                poison_shared(__start_shared_arrays, __stop_shared_arrays - __start_shared_arrays);
                run_cluster();
            }
    threads = nullptr, current = nullptr, all_shared = nullptr;
}

// Launches a kernel. values: the addresses of its arguments.
template <class... Types>
void launch(void (*kernel)(Types...), Shape shape, void **values, bool low = false) {
    static void (*called)(Types...);
    called = kernel, arguments = values;
    body = [](void **all) { call(called, all); };
    run_grid(shape, low);
}
}  // namespace host
