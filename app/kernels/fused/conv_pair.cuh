// Parts shared by the kernels that compute both convolutions of lenet5 at once, for a warpgroup of 128 threads. In the
// mma kernel each warp works alone: it uses only the sizes of pooled maps and the functions of a single warp.
//
// An image is staged as windows of eight pixels, at every fourth column and every row: 16 bytes of float16 each. Its
// pooled maps lie as [eight channels][row][column][channel], where the rows of the images of a group alternate: so
// eight neighbouring windows, or eight neighbouring pixels, are a core matrix of wgmma wherever they start.
#pragma once
#include "half.cuh"
#include "wgmma.cuh"

constexpr int WINDOW_ROW_BYTES = 6 * 16;                   // six windows
constexpr int WINDOW_HALF_BYTES = 15 * WINDOW_ROW_BYTES;   // even rows, then odd rows, each with a row of padding
constexpr int WINDOWS_BYTES = 2 * WINDOW_HALF_BYTES;       // per image
constexpr int ROW_BYTES = 12 * 16;                         // a row of pooled pixels, eight channels
constexpr int PLANE_BYTES = 12 * ROW_BYTES;                // those channels, all rows
constexpr int POOLED_IMAGE_BYTES = 4 * PLANE_BYTES;        // 32 channels
constexpr int STEPS2 = 50, FILTER2_STEP_BYTES = 64 * 16 * 2;  // the second convolution's sum in steps of 16 channels

// This thread's number in its warpgroup. Read anew each time, so that what depends on it is not kept in registers, which
// the sums need, from one phase to the next.
__device__ __forceinline__ int own_number() {
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number % 128;
}

// The number of this thread's warpgroup. Through a shuffle the compiler knows that it is the same in the whole warp, and
// keeps addresses that depend on it in uniform registers, where wgmma wants them.
__device__ __forceinline__ int warpgroup_number() { return __shfl_sync(~0u, threadIdx.x / 128, 0); }

// How many images each warpgroup takes at a time: fewer than Most if there are enough warpgroups for all images.
template <int Most>
__device__ __forceinline__ int images_each(int images, int warpgroups) {
    return min(Most, (images + warpgroups - 1) / warpgroups);
}

// The bytes of a warpgroup's images on their way in, in pieces of 16, 49 an image: a thread's are number ``first_piece`` and
// every 128th after it, where they exist. They lie in one run, which keeps a bus busy too: images may be in the host's
// page-locked memory.
template <int Images>
struct Pieces {
    uint4 piece[(49 * Images + 7 + 127) / 128] = {};
};

// Threads count from the start of a line of 128 bytes, so that no two warps of a group touch the same one: a bus carries it
// twice.
__device__ __forceinline__ int first_piece(const unsigned char *x, int first, int t) {
    return t - int(((unsigned long long)x / sizeof(uint4) + first * 49U) % 8);
}

// Those of images beyond ``count`` stay as they are.
template <int Images>
__device__ __forceinline__ void load_pieces(Pieces<Images> &pieces, const unsigned char *x, int first, int count,
                                            int t) {
    const uint4 *source = (const uint4 *)x + first * 49LL;
    const int own = first_piece(x, first, t), there = 49 * count;
#pragma unroll
    for (int i = 0; i < sizeof(pieces) / sizeof(uint4); i++)
        if (own + 128 * i >= 0 && own + 128 * i < there) pieces.piece[i] = __ldg(source + own + 128 * i);
}

// Two bytes of four as float16: 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ half2 to_half2(unsigned bytes, int which) {
    half2 pair;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(__byte_perm(bytes, 0x64646464, which)), "r"(0x64006400));
    return pair;
}

// Writes the windows of an image: four bytes are the left half of one window and the right half of the one before. own: the
// thread's first piece.
template <int Images>
__device__ __forceinline__ void stage_windows(unsigned char *windows, const Pieces<Images> &pieces, int image, int own) {
#pragma unroll
    for (int i = 0; i < sizeof(pieces) / sizeof(uint4); i++) {
        const int number = own + 128 * i - 49 * image;
        if (number < 0 || number >= 49) continue;
        const uint4 &piece = pieces.piece[i];
        const unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int word = 4 * number + j, row = word / 7, column = word % 7;
            const uint2 four = make_uint2(to_half2(words[j], 0x4140), to_half2(words[j], 0x4342));
            unsigned char *at = windows + row % 2 * WINDOW_HALF_BYTES + row / 2 * WINDOW_ROW_BYTES + column * 16;
            if (column < 6) *(uint2 *)at = four;
            if (column > 0) *(uint2 *)(at - 8) = four;
        }
    }
}

// The rows below the image are multiplied by zeros: they must hold numbers.
__device__ __forceinline__ void clear_padding(unsigned char *windows, int t) {
    if (t >= 12) return;
    unsigned char *half = windows + t / 6 * WINDOW_HALF_BYTES;
    *(uint4 *)(half + 14 * WINDOW_ROW_BYTES + t % 6 * 16) = make_uint4(0, 0, 0, 0);
}

// A thread's part of the first convolution's filters, even or odd maps: filter rows 0 and 2, 1 and 3, 4 and none.
struct Filters1 {
    uint4 step[3];
};
__device__ __forceinline__ Filters1 load_filters1(const uint4 *filters, int odd_maps, int t) {
    const uint4 *own = filters + odd_maps * (3 * 128) + t;
    return {{__ldg(own), __ldg(own + 128), __ldg(own + 256)}};
}

// Waits until the filters are there. Else the assembler has the next products wait for them, in registers that it uses
// again, and with them for all that was loaded since: the next images, which may still be on the bus.
__device__ __forceinline__ void wait_for(const Filters1 &filters) {
    // Zero, of the row below the filters; a use that no compiler can leave out.
    asm volatile("{ .reg .pred never; setp.ne.u32 never, %0, 0; @never trap; }" ::"r"(filters.step[2].w) : "memory");
}

// The first convolution of a staged image with those filters, asynchronously. The 64 rows of the products are 16 maps at
// four neighbouring columns, their 72 columns the six windows of twelve rows. upper: rows 0, 2, …; lower: rows 1, 3, …
// Sums: float32, or pairs of float16.
template <typename Sums>
__device__ __forceinline__ void convolve1(Sums &upper, Sums &lower, const Filters1 &filters,
                                          const unsigned char *windows, bool clear) {
    const unsigned long long rows = make_smem_desc(shared_address(windows), WINDOW_ROW_BYTES, 128);
#pragma unroll
    for (int step = 0; step < 3; step++) {
        const int even_row = step == 1 ? WINDOW_HALF_BYTES : step * WINDOW_ROW_BYTES;
        const int odd_row = step == 1 ? WINDOW_ROW_BYTES : WINDOW_HALF_BYTES + step * WINDOW_ROW_BYTES;
        wgmma_f16(upper, filters.step[step], advance_desc(rows, even_row), clear && step == 0);
        wgmma_f16(lower, filters.step[step], advance_desc(rows, odd_row), clear && step == 0);
    }
}

// 2 * max(value, 0) by an addition, which the card does twice as often as a maximum; NaN stays NaN.
__device__ __forceinline__ float twice_relu(float value) { return value + fabsf(value); }

// Where this thread's results of convolve1 belong in an image's pooled maps, a pair of channels: for column
// 8 * j + 2 * (lane % 4) of the products at[j % 3] and four rows on for every three of j; for the next column, in the same
// row, 32 bytes on. Rows lie row_stride bytes apart; a channel has Bytes bytes, and a pixel 16 in each plane.
struct Places1 {
    int at[3];
};
template <int Bytes = 2>
__device__ __forceinline__ Places1 places1(int row_stride, int t) {
    const int warp = t / 32, lane = t % 32;
    const int channel = (8 * warp + lane / 4 % 4 * 2) * Bytes;
    const int first = channel / 16 * 12 * row_stride + lane / 16 * 16 + channel % 16;
    Places1 places;
#pragma unroll
    for (int j = 0; j < 3; j++) {
        const int window = 8 * j + 2 * (lane % 4);
        places.at[j] = first + window / 6 * row_stride + window % 6 * 32;
    }
    return places;
}

// Twice the sums over the four 2 x 2 windows of one column of windows, of a map's positive results in the second
// convolution: window column = lane % 4. Columns of the product: [row][image][column], as the pooled maps lie.
template <int Images>
__device__ __forceinline__ void pooled2(float (&rows)[4], const float (&sums)[32 * Images], int image, int half) {
#pragma unroll
    for (int row = 0; row < 4; row++) {
        const int upper = 4 * (2 * row * Images + image) + 2 * half, lower = upper + 4 * Images;
        rows[row] = (twice_relu(sums[upper]) + twice_relu(sums[upper + 1])) +
                    (twice_relu(sums[lower]) + twice_relu(sums[lower + 1]));
    }
}

// Transposes a 4 x 4 tile over four lanes: column lane % 4 comes in, row lane % 4 goes out.
__device__ __forceinline__ uint2 transposed(const float (&column)[4], int lane) {
    const bool low_half = lane & 2, odd = lane & 1;
    const half2 top = pack_half2(column[0], column[1]), bottom = pack_half2(column[2], column[3]);
    const half2 from_far = __shfl_xor_sync(~0u, low_half ? top : bottom, 2), kept = low_half ? bottom : top;
    const half2 left = low_half ? from_far : kept, right = low_half ? kept : from_far;  // two columns apart
    const half2 upper = __byte_perm(left, right, 0x5410), lower = __byte_perm(left, right, 0x7632);
    const half2 from_near = __shfl_xor_sync(~0u, odd ? upper : lower, 1), own = odd ? lower : upper;
    const half2 even_columns = odd ? from_near : own, odd_columns = odd ? own : from_near;
    return make_uint2(__byte_perm(even_columns, odd_columns, 0x5410), __byte_perm(even_columns, odd_columns, 0x7632));
}
