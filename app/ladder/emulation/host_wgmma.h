// C++ versions of the PTX functions of wgmma.cuh: a warpgroup's products, from the same descriptors.
//
// A product is computed when a thread waits for it, and no sooner, from the shared memory that the tensor cores then see.
// Sums are truncated as in host_mma.h; those in float16 are rounded after each instruction.
#pragma once
#include "host_bulk.h"
#include "host_mma.h"

namespace host {
enum Kind { HALVES, INTO_HALVES, BYTES, SPARSE_HALVES, SPARSE_BYTES };
inline bool is_sparse(Kind kind) { return kind == SPARSE_HALVES || kind == SPARSE_BYTES; }
inline bool is_bytes(Kind kind) { return kind == BYTES || kind == SPARSE_BYTES; }
struct Product {
    Kind kind;
    bool a_in_registers, clear;
    uint4 a;
    unsigned long long a_desc, b_desc;
    void *sums;
    int columns;
    unsigned meta = 0, selector = 0;  // of a sparse product
};
struct Products {
    bool fenced = false;
    std::vector<Product> open, committed;
};
inline Products products[MOST_THREADS];  // by thread
constexpr int ROW_BYTES_OF_K = 64;       // most bytes of a row of A, or of a column of B, in one product

// A (64 rows) and B (up to 256 columns) of a product, read and converted once for the whole warpgroup.
struct Operands {
    unsigned char a[64][ROW_BYTES_OF_K], b[256][ROW_BYTES_OF_K], kept[64][32];  // kept: columns of a sparse row's weights
    float a_numbers[64][ROW_BYTES_OF_K / 2], b_numbers[256][ROW_BYTES_OF_K / 2];
};
inline std::vector<Operands> operands[MOST_THREADS / 128];

inline void read_operand(unsigned char (*rows)[ROW_BYTES_OF_K], int count, unsigned long long desc, int parts = 2) {
    if (desc >> 46) fail("multiplies by a descriptor with a swizzle or a base offset, which is not emulated");
    const unsigned start = (desc & 0x3FFF) << 4, next_k = (desc >> 16 & 0x3FFF) << 4, next_rows = (desc >> 32 & 0x3FFF) << 4;
    const std::vector<unsigned char> &memory = current->block->proxy;
    for (int row = 0; row < count; row++)
        for (int part = 0; part < parts; part++) {
            const unsigned from = start + part * next_k + row / 8 * next_rows + row % 8 * 16;
            if (from + 16 > memory.size()) fail("multiplies what lies beyond the block's shared memory");
            std::memcpy(rows[row] + 16 * part, memory.data() + from, 16);
        }
}
// Reads A from registers, 16 rows for each warp, laid out as mma_f16's A.
inline void read_registers(unsigned char (*rows)[ROW_BYTES_OF_K], int first_thread, std::size_t which) {
    for (int t = 0; t < 128; t++) {
        const uint4 &a = products[first_thread + t].committed[which].a;
        const unsigned words[4] = {a.x, a.y, a.z, a.w};
        for (int i = 0; i < 4; i++)
            std::memcpy(rows[t / 32 * 16 + t % 32 / 4 + i % 2 * 8] + i / 2 * 16 + t % 4 * 4, &words[i], 4);
    }
}

// Reads from the metadata which columns of A a sparse product keeps. A register describes eight groups of four columns: of
// float16 in two rows, in the lanes that the selector names; of bytes in one row, in all lanes.
inline void read_metadata(unsigned char (*kept)[32], int first_thread, std::size_t which) {
    for (int t = 0; t < 128; t++) {
        const Product &product = products[first_thread + t].committed[which];
        const bool bytes = product.kind == SPARSE_BYTES;
        if (product.selector != (bytes ? 0 : t % 4 / 2)) {
            if (bytes) fail("multiplies bytes by a selector that is not 0");
            continue;
        }
        for (int i = 0; i < 16; i++) {  // eight groups of four, two columns kept of each
            const int lower = bytes ? t % 2 : i / 8, row = t / 32 * 16 + t % 32 / 4 + lower * 8;
            const int four = bytes ? t % 4 / 2 * 8 + i / 2 : t % 2 * 4 + i / 2 % 4;
            const int place = product.meta >> 2 * i & 3, before = i % 2 ? product.meta >> 2 * (i - 1) & 3 : 0;
            if (i % 2 && place <= before) fail("multiplies by metadata whose places do not rise");
            kept[row][2 * four + i % 2] = 4 * four + place;
        }
    }
}

inline void convert_halves(float *numbers, const void *halves, int count) {
    for (int i = 0; i < count; i++) numbers[i] = of_half(((const unsigned short *)halves)[i]);
}
inline float multiply_accumulate(float before, const float *a, const float *b) {
    double terms[17] = {before};
    for (int k = 0; k < 16; k++) terms[1 + k] = double(a[k]) * b[k];
    return truncated_sum(terms);
}

// Computes this thread's part of a product: rows 16 w + g and 16 w + g + 8, columns 8 j + 2 t and 8 j + 2 t + 1.
inline void compute(const Product &product, const Operands &of) {
    const int t = threadIdx.x % 128, row0 = t / 32 * 16 + t % 32 / 4, column0 = t % 4 * 2;
    float chosen[16];  // values of B that a sparse row multiplies
    for (int j = 0; j < product.columns / 8; j++)
        for (int next = 0; next < 2; next++) {
            const unsigned char *column = of.b[8 * j + column0 + next];
            for (int lower = 0; lower < 2; lower++) {
                const float *a = of.a_numbers[row0 + 8 * lower], *b = of.b_numbers[8 * j + column0 + next];
                if (product.kind == SPARSE_HALVES) {
                    for (int k = 0; k < 16; k++) chosen[k] = b[of.kept[row0 + 8 * lower][k]];
                    b = chosen;
                }
                if (product.kind == HALVES || product.kind == SPARSE_HALVES) {
                    float &sum = ((float *)product.sums)[4 * j + 2 * lower + next];
                    sum = multiply_accumulate(product.clear ? 0 : sum, a, b);
                } else if (product.kind == INTO_HALVES) {
                    unsigned short &sum = ((unsigned short *)product.sums)[2 * (2 * j + lower) + next];
                    sum = to_half(multiply_accumulate(product.clear ? 0 : of_half(sum), a, b));
                } else {
                    int &sum = ((int *)product.sums)[4 * j + 2 * lower + next], added = 0;
                    for (int k = 0; k < 32; k++) {
                        const int from = product.kind == BYTES ? k : of.kept[row0 + 8 * lower][k];
                        added += (signed char)of.a[row0 + 8 * lower][k] * int(column[from]);
                    }
                    sum = (product.clear ? 0 : sum) + added;
                }
            }
        }
}

inline void issue(Product product) {
    Products &own = products[number()];
    if (!own.fenced) fail("multiplies without a wgmma_fence since its registers were last read or written");
    Block &block = *current->block;
    if (block.fenced) block.proxy.assign(block.memory.start, block.memory.start + block.memory.bytes), block.fenced = false;
    own.open.push_back(product);
}
}  // namespace host

inline void wgmma_fence() { host::products[host::number()].fenced = true; }
inline void fence_proxy_async() { host::current->block->fenced = true; }
inline void wgmma_commit_group() {
    host::Products &own = host::products[host::number()];
    own.committed.insert(own.committed.end(), own.open.begin(), own.open.end());
    own.open.clear();
}
inline void warpgroup_barrier(int number) { host::wait_for_128_threads(number); }
template <int>
inline void warpgroup_reg_dealloc() {}
template <int>
inline void warpgroup_reg_alloc() {}

template <int Count>
inline void wgmma_f16(float (&d)[Count], const uint4 &a, unsigned long long b, bool clear) {
    host::issue({host::HALVES, true, clear, a, 0, b, d, 2 * Count});
}
template <int Count>
inline void wgmma_f16(unsigned (&d)[Count], const uint4 &a, unsigned long long b, bool clear) {
    host::issue({host::INTO_HALVES, true, clear, a, 0, b, d, 4 * Count});
}
template <int Count>
inline void wgmma_f16(float (&d)[Count], unsigned long long a, unsigned long long b, bool clear) {
    host::issue({host::HALVES, false, clear, {}, a, b, d, 2 * Count});
}
template <int Count>
inline void wgmma_s8_u8(int (&d)[Count], unsigned long long a, unsigned long long b, bool clear) {
    host::issue({host::BYTES, false, clear, {}, a, b, d, 2 * Count});
}

template <int Selector, int Count>
inline void wgmma_f16_sparse(float (&d)[Count], unsigned long long a, unsigned long long b, unsigned meta, bool clear) {
    host::issue({host::SPARSE_HALVES, false, clear, {}, a, b, d, 2 * Count, meta, Selector});
}
template <int Selector, int Count>
inline void wgmma_s8_u8_sparse(int (&d)[Count], unsigned long long a, unsigned long long b, unsigned meta, bool clear) {
    host::issue({host::SPARSE_BYTES, false, clear, {}, a, b, d, 2 * Count, meta, Selector});
}
inline void wgmma_wait_older_groups() {}
inline uint2 load_metadata(const void *shared) {
    __cvta_generic_to_shared(shared), __cvta_generic_to_shared((const char *)shared + 7);
    return *(const uint2 *)shared;
}
inline unsigned load_metadata_word(const void *shared) {
    __cvta_generic_to_shared(shared);
    return *(const unsigned *)shared;
}

// Computes all committed products. sums: addresses of their sums, in any order.
inline void wait_for_products(std::initializer_list<const void *> sums) {
    const int number = host::number(), group = number / 128, meeting = 16 + threadIdx.x / 128;
    std::vector<host::Product> &committed = host::products[number].committed;
    std::vector<host::Operands> &operands = host::operands[group];
    for (const host::Product &product : committed)
        if (std::find(sums.begin(), sums.end(), product.sums) == sums.end())
            host::fail("waits for products without naming their sums");
    host::wait_for_128_threads(meeting);
    if (threadIdx.x % 128 == 0) {
        operands.resize(committed.size());
        for (int t = 0; t < 128; t++) {
            const auto &other = host::products[number + t].committed;
            bool alike = other.size() == committed.size();
            for (std::size_t i = 0; alike && i < other.size(); i++)
                alike = other[i].a_desc == committed[i].a_desc && other[i].b_desc == committed[i].b_desc;
            if (!alike) host::fail("multiplies by other descriptors than the rest of its warpgroup");
        }
        for (std::size_t i = 0; i < committed.size(); i++) {
            const host::Product &product = committed[i];
            if (product.a_in_registers) host::read_registers(operands[i].a, number, i);
            else host::read_operand(operands[i].a, 64, product.a_desc);
            host::read_operand(operands[i].b, product.columns, product.b_desc, host::is_sparse(product.kind) ? 4 : 2);
            if (host::is_sparse(product.kind)) host::read_metadata(operands[i].kept, number, i);
            if (host::is_bytes(product.kind)) continue;
            host::convert_halves(*operands[i].a_numbers, operands[i].a, sizeof operands[i].a / 2);
            host::convert_halves(*operands[i].b_numbers, operands[i].b, product.columns * host::ROW_BYTES_OF_K / 2);
        }
    }
    host::wait_for_128_threads(meeting);
    for (std::size_t i = 0; i < committed.size(); i++) host::compute(committed[i], operands[i]);
    committed.clear();
    host::products[number].fenced = false;
}
template <typename... Sums>
inline void wgmma_wait_group(Sums &...sums) { wait_for_products({&sums...}); }

// PTX functions that kernels define themselves.
inline int thread_in_warpgroup() { return threadIdx.x % 128; }
template <typename Loaded>
inline void wait_for_loads(const Loaded &) {}
