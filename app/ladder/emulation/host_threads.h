// A block's threads, and those of a cluster of blocks, as contexts that run one after the other, each up to the next
// place where it waits for others. The order in which they run turns round every time that all of them wait.
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
inline Index threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace host {
inline void (*before_failing)(void *frame) = [](void *) {};

// Ends the program: no card would go on here, or not to a defined result.
[[noreturn]] __attribute__((noinline)) inline void fail(const char *reason) {
    dprintf(2, "FAULT %s\n", reason);
    before_failing(__builtin_frame_address(0));
    abort();
}

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

// From the linker: where shared arrays of a known size lie, if there are any.
extern "C" unsigned char __start_shared_arrays[] __attribute__((weak)), __stop_shared_arrays[] __attribute__((weak));

// Fills shared memory with a NaN of each type that differs from that of other memory, which is 0xFF in every byte.
inline void poison_shared(unsigned char *start, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i++) start[i] = i % 2 ? 0xFF : 0xFE;
}

struct Block {
    unsigned rank;  // in its cluster
    Fenced memory;  // shared
    Index index = {};
    int left = 0;                      // threads that have not ended
    bool begun = false;
    std::vector<unsigned char> proxy;  // shared memory as the tensor cores see it: host_bulk.h
    bool fenced = false;
    int copies = 0;  // into its shared memory, under way
    struct Meeting {
        unsigned arrived, turn;
    } meetings[32] = {};  // by number: barriers of 128 threads, and then those of the warpgroups themselves

    Block(unsigned number, std::size_t bytes, bool low) : rank(number), memory(bytes, low) {}
};

struct Condition {
    bool (*holds)(void *of, unsigned value);
    void *of;
    unsigned value;
    bool operator()() const { return holds(of, value); }
};
enum Awaited { NOTHING, OF_WARP, OF_BLOCK, A_CONDITION };  // of the first two: all other threads
struct Thread {
    ucontext_t first;  // how it begins; from then on it goes on by jumps, which cost no system call
    jmp_buf place;
    std::vector<char> stack = std::vector<char>(64 << 10);
    bool begun = false, done = false, hopeless = false;
    Awaited awaited = NOTHING;
    Condition condition = {};
    const char *otherwise = nullptr;  // what to say if it never holds
    Block *block = nullptr;
    unsigned cluster_arrivals = 0;
};
constexpr int MOST_THREADS = 16 * 1024;  // of a cluster
inline ucontext_t unused;
inline jmp_buf scheduler;
inline std::vector<Thread> *threads;  // of the cluster, block after block
inline Thread *current;
inline void (*body)(void **);
inline void **arguments;
inline unsigned char *shared;  // of the current block, without a size in the kernel
inline const Fenced *all_shared;

inline unsigned block_threads() { return blockDim.x * blockDim.y * blockDim.z; }

// The current thread's number in the cluster.
inline int number() { return int(current - threads->data()); }

inline void yield() {
    if (!_setjmp(current->place)) _longjmp(scheduler, 1);
    if (current->hopeless) fail(current->otherwise);
}

inline void wait(Awaited others) {
    current->awaited = others;
    current->otherwise = "waits at a barrier that not all threads of its block (or warp) come to";
    yield();
}

inline void wait_until(Condition condition, const char *otherwise) {
    if (condition()) return;
    current->awaited = A_CONDITION;
    current->condition = condition;
    current->otherwise = otherwise;
    yield();
}

// Waits for all of 128 threads, whoever they are.
inline void meet(int which) {
    Block::Meeting &own = current->block->meetings[which];
    const unsigned turn = own.turn;
    if (++own.arrived == 128) own.arrived = 0, own.turn++;
    wait_until({[](void *of, unsigned turn) { return ((Block::Meeting *)of)->turn != turn; }, &own, turn},
               "waits at a barrier that not all of 128 threads come to");
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
    Block &block = *thread.block;
    const unsigned of_block = number() % block_threads(), plane = blockDim.x * blockDim.y;
    threadIdx = {of_block % blockDim.x, of_block % plane / blockDim.x, of_block / plane}, blockIdx = block.index;
    all_shared = &block.memory, shared = block.memory.start;
    block.begun = true;
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
inline void release(int first, int last, Awaited others) {
    for (int i = first; i < last; i++)
        if (!(*threads)[i].done && (*threads)[i].awaited != others) return;
    for (int i = first; i < last; i++) (*threads)[i].awaited = NOTHING;
}

inline void release_all() {
    const int all = threads->size(), each = block_threads();
    for (int block = 0; block < all; block += each) {
        for (int warp = block; warp < block + each; warp += 32)
            release(warp, std::min(warp + 32, block + each), OF_WARP);
        release(block, block + each, OF_BLOCK);
    }
    for (Thread &thread : *threads)
        if (!thread.done && thread.awaited == A_CONDITION && thread.condition()) thread.awaited = NOTHING;
}

// Lets each thread that waits for nothing run, in turn; returns whether there was one.
inline bool run_all(bool backwards) {
    bool any = false;
    const int all = threads->size();
    for (int i = 0; i < all; i++) {
        Thread &thread = (*threads)[backwards ? all - 1 - i : i];
        if (thread.done || thread.awaited != NOTHING) continue;
        go_on(thread);
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
    for (bool backwards = false; !all_done(); backwards = !backwards) {
        if (!run_all(backwards)) {
            Thread &stuck = *std::find_if(threads->begin(), threads->end(), [](auto &one) { return !one.done; });
            stuck.hopeless = true;
            go_on(stuck);
        }
        release_all();
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
    std::size_t bytes;     // of shared memory
    unsigned cluster = 1;  // blocks along x that run side by side
};

// Runs the body of the kernel, cluster after cluster.
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
                    block->index = {at.x + block->rank, at.y, at.z};
                    block->left = each, block->begun = block->fenced = false;
                    poison_shared(block->memory.start, block->memory.bytes);
                    block->proxy.assign(block->memory.start, block->memory.start + block->memory.bytes);
                }
                poison_shared(__start_shared_arrays, __stop_shared_arrays - __start_shared_arrays);
                run_cluster();
            }
    threads = nullptr, current = nullptr, all_shared = nullptr;
}

// Runs the kernel. values: the addresses of its arguments.
template <class... Types>
void launch(void (*kernel)(Types...), Shape shape, void **values, bool low = false) {
    static void (*called)(Types...);
    called = kernel, arguments = values;
    body = [](void **all) { call(called, all); };
    run_grid(shape, low);
}
}  // namespace host
