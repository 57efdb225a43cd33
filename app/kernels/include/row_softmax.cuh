// The softmax of a row that is distributed over lanes of a warp, with the bits of softmax_01_rows: columns 16 apart are
// added first, then those 8, 4, 2 and 1 apart.
#pragma once
#include "common.cuh"

// Reduces all values of a row; every lane of the row gets the result. The arguments from Apart on say where columns lie
// whose numbers differ in one bit, from the highest bit to the lowest: positive, so far apart in a lane's array;
// negative, in lanes so far apart. Done: the bits of the array's index that are reduced already.
template <int Done, int Apart, int... Others, int Count, typename Act>
__device__ __forceinline__ float combine_row(float (&values)[Count], Act act) {
#pragma unroll
    for (int i = 0; i < Count; i++) {
        if (i & Done) continue;
        if constexpr (Apart < 0) values[i] = act(values[i], __shfl_xor_sync(0xffffffff, values[i], -Apart));
        else if (!(i & Apart)) values[i] = act(values[i], values[i + Apart]);
    }
    if constexpr (sizeof...(Others) > 0) return combine_row<Done | (Apart > 0 ? Apart : 0), Others...>(values, act);
    else return values[0];
}

// Replaces a lane's columns by exp(score - greatest) / sum. Apart: as above, for all bits of column numbers. score(i):
// of the lane's column i; exists(i): whether the row has it. All lanes of the warp must call it.
template <int... Apart, int Count, typename Score, typename Exists>
__device__ __forceinline__ void softmax_of_row(float (&values)[Count], Score score, Exists exists) {
    float combined[Count];
#pragma unroll
    for (int i = 0; i < Count; i++) combined[i] = values[i] = exists(i) ? score(i) : __int_as_float(0xff800000);
    const float most = combine_row<0, Apart...>(combined, [](float a, float b) { return pool_step<true>(a, b); });
#pragma unroll
    for (int i = 0; i < Count; i++) combined[i] = values[i] = exp(values[i] - most);
    const float sum = combine_row<0, Apart...>(combined, [](float a, float b) { return a + b; });
#pragma unroll
    for (int i = 0; i < Count; i++) values[i] /= sum;
}
