// The program that runs a kernel: it keeps arrays between guard pages, and reports the thread that accesses memory outside
// of them. No function is a member of a class, because those would be compiled again with every kernel.
#pragma once
#include <signal.h>
#include <sys/time.h>

#include <cstring>
#include <memory>

namespace host {
struct Array {
    const char *name;
    std::size_t each, count;  // bytes of an element; number of elements
    std::unique_ptr<Fenced> memory;
    bool only_read = false;
};

inline std::vector<Array> &arrays() {
    static std::vector<Array> all;
    return all;
}

inline void report_thread(void *frame, std::uintptr_t first = 0) {
    dprintf(2, "THREAD %u", threadIdx.x);
    if (blockDim.y * blockDim.z > 1) dprintf(2, ", %u, %u", threadIdx.y, threadIdx.z);
    dprintf(2, " of block %u, %u, %u\nAT", blockIdx.x, blockIdx.y, blockIdx.z);
    if (first) dprintf(2, " %zx", (std::size_t)first);
    // The return addresses on this thread's stack.
    const char *low = current ? (char *)current->stack->start : nullptr, *high = low ? low + STACK : nullptr;
    for (char *at = (char *)frame; low && low <= at && at + 16 <= high; at = *(char **)at)
        dprintf(2, " %zx", ((std::size_t *)at)[1] - 1);
    dprintf(2, "\n");
}

inline void on_signal(int number, siginfo_t *info, void *context) {
    std::uintptr_t instruction = 0;
    void *frame = nullptr;
    const char *access = "touches";
#if defined(__x86_64__)
    const auto &registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    instruction = registers[REG_RIP], frame = (void *)registers[REG_RBP];
    access = registers[REG_ERR] & 2 ? "writes" : "reads";
#elif defined(__aarch64__)
    const auto &registers = ((ucontext_t *)context)->uc_mcontext;
    instruction = registers.pc, frame = (void *)registers.regs[29];
#endif
    if (number == SIGPROF) {
        dprintf(2, "FAULT does not come to an end\n");
    } else if (number == SIGFPE) {
        dprintf(2, "FAULT divides by zero\n");
    } else {
        const unsigned char *place = (const unsigned char *)info->si_addr;
        bool found = false;
        for (const Array &array : arrays()) {
            if (!array.memory->near(place)) continue;
            found = true;
            const long long each = array.each, beyond = place - array.memory->start;
            const long long at = (beyond - (beyond < 0 ? each - 1 : 0)) / each;
            if (at >= 0 && at < (long long)array.count)
                dprintf(2, "FAULT writes to %s, which it may only read\n", array.name);
            else
                dprintf(2, "FAULT %s %s[%lld]: %s has %zu elements\n", access, array.name, at, array.name, array.count);
        }
        if (!found && all_shared && all_shared->near(place))
            dprintf(2, "FAULT %s byte %lld of shared memory: its block has %zu\n", access,
                    (long long)(place - all_shared->start), all_shared->bytes);
        else if (!found && current && current->stack->near(place))
            dprintf(2, "FAULT needs more than the 512 KB of local memory that a thread has\n");
        else if (!found)
            dprintf(2, "FAULT %s an address that lies in no array\n", access);
    }
    report_thread(frame, instruction);
    _exit(1);
}

// low: whether arrays begin, not end, at a guard page. runs: how often the kernel runs, each time on other inputs, while all
// other memory stays as the last run has left it.
struct Program {
    bool low;
    int runs;
    std::FILE *results;  // the standard output; what the kernel prints goes to the standard error
};

// arguments of the program: low (0 or 1), limit of CPU time in seconds, runs.
inline Program begin_program(char **arguments) {
    const Program program = {arguments[1][0] == '1', atoi(arguments[3]), fdopen(dup(1), "w")};
    dup2(2, 1);
    before_failing = [](void *frame) { report_thread(frame); };
    static char stack[64 << 10];
    const stack_t other = {stack, 0, sizeof stack};
    sigaltstack(&other, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_signal, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGPROF}) sigaction(number, &action, nullptr);
    const itimerval limit = {{0, 0}, {atoi(arguments[2]), 0}};
    setitimer(ITIMER_PROF, &limit, nullptr);
    return program;
}

inline void *array(const Program &program, const char *name, std::size_t each, std::size_t count) {
    arrays().push_back({name, each, count, std::make_unique<Fenced>(each * count, program.low)});
    return arrays().back().memory->start;
}

inline void fill(const Array &array) {
    const Fenced &memory = *array.memory;
    mprotect(memory.map + FENCE, memory.whole - 2 * FENCE, PROT_READ | PROT_WRITE);
    if (std::fread(memory.start, array.each, array.count, stdin) != array.count) fail("found its input cut short");
    mprotect(memory.map + FENCE, memory.whole - 2 * FENCE, PROT_READ);
}

// Creates an array that the kernel may only read, and fills it from the standard input.
inline void *input(const Program &program, const char *name, std::size_t each, std::size_t count) {
    void *start = array(program, name, each, count);
    arrays().back().only_read = true;
    fill(arrays().back());
    return start;
}

// The constant memory that the last call of copy_to_constant filled.
inline unsigned char *constant = nullptr;
inline std::size_t constant_bytes = 0;

inline void copy_to_constant(void *symbol, const void *source, std::size_t bytes) {
    constant = (unsigned char *)std::memcpy(symbol, source, bytes), constant_bytes = bytes;
}

// Reads the next run's inputs into the same arrays. In this run blocks and threads take turns in another order.
inline void refill_inputs() {
    reversed = true;
    for (const Array &array : arrays())
        if (array.only_read) fill(array);
}

inline void output(const Program &program, const char *name) {
    for (const Array &array : arrays())
        if (array.name == name) std::fwrite(array.memory->start, array.each, array.count, program.results);
    std::fflush(program.results);
}

// Lets other threads run between a thread's loads and its store to common memory, as they may on a GPU.
inline void before_store(const void *place) {
    static bool looking = false;  // this function's own stores do not count
    if (!reversed || !current || looking) return;
    looking = true;
    bool common = all_shared->near(place) || (__start_shared_arrays <= place && place < __stop_shared_arrays);
    for (const Array &array : arrays()) common |= array.memory->near(place);
    looking = false;
    if (common) yield();
}
}  // namespace host

// The compiled kernel calls these functions before accesses outside of its stack (-fsanitize=kernel-address).
#define BEFORE_ACCESS(KIND, BYTES, ...)                                                                                \
    extern "C" [[gnu::used, gnu::no_sanitize("kernel-address")]] inline void __asan_##KIND##BYTES##_noabort(__VA_ARGS__) { \
        host::before_##KIND(place);                                                                                    \
    }
#define BEFORE_ACCESSES(KIND)                                                                                          \
    BEFORE_ACCESS(KIND, 1, const void *place) BEFORE_ACCESS(KIND, 2, const void *place)                                \
    BEFORE_ACCESS(KIND, 4, const void *place) BEFORE_ACCESS(KIND, 8, const void *place)                                \
    BEFORE_ACCESS(KIND, 16, const void *place) BEFORE_ACCESS(KIND, N, const void *place, std::size_t)
BEFORE_ACCESSES(store)
extern "C" [[gnu::used]] inline void __asan_handle_no_return() {}
extern "C" [[gnu::used]] inline void __asan_before_dynamic_init(const void *) {}
extern "C" [[gnu::used]] inline void __asan_after_dynamic_init() {}

// The compiler's index checks (-fsanitize=bounds) call this.
extern "C" [[gnu::used]] inline void __ubsan_on_report() {
    host::report_thread(__builtin_frame_address(0));
}
