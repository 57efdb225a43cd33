// Fills the shared memory that a block has with one word. Launched with all that a block may have, and many more blocks
// than the card has multiprocessors, it leaves no shared memory as it was.
extern "C" __global__ void poison_shared(int words, unsigned word) {
    extern __shared__ unsigned memory[];
    volatile unsigned *seen = memory;  // else the stores, which nothing reads, are left out
    for (int i = threadIdx.x; i < words; i += blockDim.x) seen[i] = word;
}
