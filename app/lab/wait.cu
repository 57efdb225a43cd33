// Keeps the stream busy while the host enqueues a pair of events and all the work between them. Without this delay, the
// time of short kernels would be the time that the host takes to launch them.
__device__ void wait_here(long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < (unsigned long long)nanoseconds);
}
extern "C" __global__ void wait(long long nanoseconds) { wait_here(nanoseconds); }

// Counts the cycles of a multiprocessor's clock.
extern "C" __global__ void count_cycles(long long nanoseconds, long long *cycles) {
    const long long first = clock64();
    wait_here(nanoseconds);
    *cycles = clock64() - first;
}
