// Counts a kernel's loads: the compiled kernel calls one of these functions before each memory access
// (-fsanitize=kernel-address), except accesses to its own stack. A program includes this header last.
#pragma once

namespace host {
struct Counts {
    unsigned long long global_loads = 0, shared_loads = 0, constant_loads = 0;
    ~Counts() {
        std::fflush(stdout);  // the kernel's own output comes first
        dprintf(2, "\nCOUNTS %llu %llu %llu\n", global_loads, shared_loads, constant_loads);
    }
};
inline Counts counts;
inline bool counting = false;          // true inside before_load(), whose own loads do not count
inline const unsigned char *ends[64];  // begin and end of each array; reading them from arrays() takes ten times as long
inline int known = 0;

inline void before_load(const void *place) {
    if (counting || !current) return;  // no thread runs yet
    counting = true;
    if (!known)
        for (const Array &array : arrays())
            ends[known++] = array.memory->map, ends[known++] = array.memory->map + array.memory->whole;
    if ((__start_shared_arrays <= place && place < __stop_shared_arrays) ||
        (all_shared && all_shared->map <= place && place < all_shared->map + all_shared->whole))
        counts.shared_loads++;
    else if (constant <= place && place < constant + constant_bytes)
        counts.constant_loads++;
    else
        for (int i = 0; i < known; i += 2) counts.global_loads += ends[i] <= place && place < ends[i + 1];
    counting = false;
}
}  // namespace host
BEFORE_ACCESSES(load)
