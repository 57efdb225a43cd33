// A libcuda.so.1 with FAKE_CARDS cards, GPU-0, GPU-1, …, that reads CUDA_VISIBLE_DEVICES as CUDA does.
#include <stdlib.h>
#include <string.h>

static int started;

static int visible(void) {
    const char *cards = getenv("FAKE_CARDS");
    const char *listed = getenv("CUDA_VISIBLE_DEVICES");
    int all = cards ? atoi(cards) : 0;
    if (!listed) return all;
    int count = 0;
    char copy[256];
    strncpy(copy, listed, sizeof copy - 1);
    copy[sizeof copy - 1] = 0;
    for (char *name = strtok(copy, ","); name; name = strtok(NULL, ",")) {
        while (*name == ' ') name++;
        if (!strncmp(name, "MIG-", 4)) return 1;  // a process sees one instance
        if (!strncmp(name, "GPU-", 4)) name += 4;
        if (*name < '0' || *name > '9' || atoi(name) >= all) break;
        count++;
    }
    return count;
}

int cuInit(unsigned flags) {
    (void)flags;
    if (getenv("FAKE_CRASH")) abort();
    started = visible() > 0;
    return started ? 0 : 100;
}

int cuDeviceGetCount(int *count) {
    *count = visible();
    return started ? 0 : 3;
}

int contexts;

int cuDeviceGet(int *device, int number) {
    *device = number;
    return number < visible() ? 0 : 101;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = 0;
    contexts += device == 0;
    return 0;
}
