// Keeps the stream busy for a while. The host meanwhile enqueues all work between a pair of events, before the first of
// it runs: otherwise launches as short as the host's own work would be timed at the host's pace.
extern "C" __global__ void wait(long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < (unsigned long long)nanoseconds);
}
