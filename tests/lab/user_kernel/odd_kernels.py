"""Sources of correct kernels with unusual launches or code, which ``check`` must accept."""

from app.kernels.problems import ConvProblem, LinearProblem, PoolProblem, Problem

PROBLEM = ConvProblem(2, 9, 8, 5, 3, 1, bias=True)

SUM = """\
    float sum = {first};
    for (int c = 0; c < C; c++)
        for (int p = 0; p < K; p++)
{pragma}            for (int q = 0; q < K; q++)
                sum {term};
"""
TERM = "x[((n * C + c) * H + row * S + p) * W + column * S + q] * w[((c * K + p) * K + q) * M + m]"
CONV = """\
//@ kernel: conv
{header}
//@ without: activation, padding, bytes
{include}
constexpr int OH = (H - K) / S + 1, OW = (W - K) / S + 1;
{functions}
extern "C" __global__ void {bounds}odd(const float *{r}x, const float *{r}w, const float *{r}bias, float *{r}y,
                                       int images) {{
{body}
}}
"""
STORE = "y[((n * M + m) * OH + row) * OW + column] = HAS_BIAS ? sum + bias[m] : sum;"
PLACE = "const int column = at % OW, row = at / OW % OH, m = at / (OW * OH) % M, n = at / (OW * OH * M);"


def conv_source(header: str, body: str, **parts: str) -> str:
    """Return the source of a convolution. parts: include line, functions, launch bounds, ``r`` for __restrict__."""
    given = {"include": "", "functions": "", "bounds": "", "r": ""} | parts
    return CONV.format(header=header, body=body, **given)


def sum_loops(first: str = "0", pragma: str = "", term: str = f"+= {TERM}") -> str:
    """Return the loops that sum one output."""
    return SUM.format(first=first, pragma=pragma, term=term)


def flat_kernel(block: int, count: int = 1, summed: str = "", **parts: str) -> str:
    """Return a kernel of one-dimensional blocks; each thread has ``count`` outputs far apart. summed: other loops."""
    header = f"//@ block: {block}\n//@ grid: ceil_div(images * M * OH * OW, {block} * {count})"
    first, step = f"blockIdx.x * {block} + threadIdx.x", f"gridDim.x * {block}"
    loop = f"    for (int at = {first}; at < images * M * OH * OW; at += {step}) {{\n    {PLACE}\n"
    return conv_source(header, loop + (summed or sum_loops()) + f"    {STORE}\n    }}", **parts)


def cube_kernel(x: int, y: int, z: int, swapped: bool = False) -> str:
    """Return a kernel of three-dimensional blocks over columns, rows and maps; swapped: maps, rows, columns."""
    sizes = ("M", "OH", "OW * images") if swapped else ("OW", "OH", "M * images")
    tiles = ", ".join(f"ceil_div({size}, {tile})" for size, tile in zip(sizes, (x, y, z), strict=True))
    i, j, k = (
        f"const int {name} = blockIdx.{name[0]} * blockDim.{name[0]} + threadIdx.{name[0]};"
        for name in ("x_", "y_", "z_")
    )
    place = (
        "m = x_, row = y_, column = z_ % OW, n = z_ / OW"
        if swapped
        else "column = x_, row = y_, m = z_ % M, n = z_ / M"
    )
    stop = "    if (column >= OW || row >= OH || m >= M || n >= images) return;\n"
    return conv_source(
        f"//@ block: {x}, {y}, {z}\n//@ grid: {tiles}",
        f"    {i} {j} {k}\n    const int {place};\n{stop}{sum_loops()}    {STORE}",
    )


def several_maps_kernel(outputs: int, threads: int) -> str:
    """Return a kernel whose threads sum ``outputs`` neighbouring maps in registers, by templates and a lambda."""
    grid = f"ceil_div(images * OH * OW, {threads}), ceil_div(M, MAPS)"
    header = f"//@ MAPS = {outputs}\n//@ block: {threads}\n//@ grid: {grid}"
    functions = "template <int Count, typename Value> struct Sums { Value of[Count] = {}; };"
    body = f"""\
    const int at = blockIdx.x * {threads} + threadIdx.x, column = at % OW, row = at / OW % OH, n = at / (OW * OH);
    if (n >= images) return;
    Sums<MAPS, float> sums;
    auto tap = [&](int c, int p, int q, int m) {{ return m < M ? w[((c * K + p) * K + q) * M + m] : 0.0f; }};
    for (int c = 0; c < C; c++)
        for (int p = K - 1; p >= 0; p--)
            for (int q = K - 1; q >= 0; q--)
#pragma unroll
                for (int i = 0; i < MAPS; i++)
                    sums.of[i] += x[((n * C + c) * H + row * S + p) * W + column * S + q] *
                                  tap(c, p, q, blockIdx.y * MAPS + i);
    for (int i = 0; i < MAPS; i++) {{
        const int m = blockIdx.y * MAPS + i;
        if (m < M) y[((n * M + m) * OH + row) * OW + column] = HAS_BIAS ? sums.of[i] + bias[m] : sums.of[i];
    }}"""
    return conv_source(header, body, functions=functions)


WARP_SUM = """for (int apart = 16; apart > 4; apart /= 2) sum += __shfl_down_sync(0xFFFFFFFF, sum, apart);
    if (threadIdx.x < 8) for (int apart = 4; apart; apart /= 2) sum += __shfl_down_sync(0xFF, sum, apart);
    else __syncwarp(0xFFFFFF00);"""
ADD_HALF = "if (threadIdx.x < i) parts[threadIdx.x] += parts[threadIdx.x + i];"
TREE_SUM = f"for (int i = 16; i; i /= 2) {{ {ADD_HALF} __syncthreads(); }} total = parts[0];"


def warp_kernel(outputs: int, add: str) -> str:
    """Return a kernel in which a warp computes one output. outputs: of a block; add: code that adds its ``sum``."""
    body = f"""\
    const uint3 block = blockIdx;
    const int at = block.x * {outputs} + threadIdx.y;
    if (at >= images * M * OH * OW) return;
    {PLACE}
    float sum = 0;
    for (int k = threadIdx.x; k < C * K * K; k += warpSize)
        sum += x[((n * C + k / (K * K)) * H + row * S + k / K % K) * W + column * S + k % K] * w[k * M + m];
    {add}
    if (threadIdx.x == 0) {STORE}"""
    return conv_source(f"//@ block: 32, {outputs}\n//@ grid: ceil_div(images * M * OH * OW, {outputs})", body)


def shared_sum_kernel(add: str) -> str:
    """Return a kernel in which ``add`` adds the threads' ``parts`` to ``total``, both in shared memory."""
    parts = "__shared__ float parts[32]; parts[threadIdx.x] = sum;\n    __shared__ float total; total = 0;\n"
    return warp_kernel(1, f"{parts}    __syncthreads();\n    {add}\n    __syncthreads();\n    sum = total;")


def gemm_kernel(tile: int, types: str, dynamic: bool) -> str:
    """Return a matrix product with tiles of both matrices in shared memory, which may be dynamic."""
    memory = "__align__(sizeof(float4)) extern __shared__ REAL a [];\n    REAL *b = a + TILE * TILE;"
    static = "__shared__ REAL a[TILE * TILE], b[TILE * TILE];"
    shared = "//@ shared: 2 * TILE * TILE * REAL_BYTES\n" * dynamic
    return f"""\
//@ kernel: gemm
//@ TILE = {tile}
//@ block: TILE, TILE
//@ grid: ceil_div(N, TILE), ceil_div(images, TILE)
//@ types: {types}
{shared}#include "common.cuh"
extern "C" __global__ void odd(const INPUT *x, const WEIGHT *w, const REAL *bias, OUTPUT *y, int images) {{
    {memory if dynamic else static}
    const int i = threadIdx.y, j = threadIdx.x, image = blockIdx.y * TILE + i, n = blockIdx.x * TILE + j;
    REAL sum = 0;
    for (int first = 0; first < DEPTH; first += TILE) {{
        a[i * TILE + j] = image < images && first + j < DEPTH ? REAL(x[image * DEPTH + first + j]) : REAL(0);
        b[i * TILE + j] = n < N && first + i < DEPTH ? REAL(w[(first + i) * N + n]) : REAL(0);
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum = fused_multiply_add(a[i * TILE + k], b[k * TILE + j], sum);
        __syncthreads();
    }}
    if (image < images && n < N)
        y[image * N + n] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[n] : REAL(0)));
}}
"""


def pool_kernel(block: int, kind: str) -> str:
    """Return a kernel of maximum or mean pooling without padding. kind: max or mean."""
    step, end = (
        ("found = max(found, value)", "found") if kind == "max" else ("found += value", "found / (WINDOW * WINDOW)")
    )
    other = "mean" if kind == "max" else "max"
    return f"""\
//@ kernel: pool
//@ block: {block}
//@ grid: ceil_div(PH * PW, {block}), CHANNELS, images
//@ without: {other}, padding, ceil
extern "C" __global__ void odd(const float *x, float *y, int images) {{
    const int at = blockIdx.x * {block} + threadIdx.x, map = blockIdx.z * CHANNELS + blockIdx.y;
    if (at >= PH * PW) return;
    const float *window = x + (map * H + at / PW * STRIDE) * W + at % PW * STRIDE;
    float found = {"-3e38f" if kind == "max" else "0"};
    for (int k = 0; k < WINDOW * WINDOW; k++) {{
        const float value = __ldg(window + k / WINDOW * W + k % WINDOW);
        {step};
    }}
    y[map * PH * PW + at] = {end};
}}
"""


LARGE = f"    float all[20000];\n    for (int k = 0; k < 20000; k++) all[k] = k - at;\n{sum_loops('all[at]')}"
DOUBLE = SUM.replace("float sum", "double sum").format(
    first="0", pragma="", term=f"+= double({TERM.replace(' * w', ') * double(w')})"
)
KAHAN = """\
    float sum = 0, lost = 0;
    for (int k = 0; k < C * K * K; k++) {
        const int c = k / (K * K), p = k / K % K, q = k % K;
        const float term = __fsub_rn(TERM, lost), next = __fadd_rn(sum, term);
        lost = __fsub_rn(__fsub_rn(next, sum), term), sum = next;
    }
""".replace("TERM", TERM)


HONEST: dict[str, tuple[str, Problem]] = {
    "1 thread, 3 outputs each": (flat_kernel(1, 3), PROBLEM),
    "33 threads": (flat_kernel(33), PROBLEM),
    "1,024 threads, 3 outputs each": (flat_kernel(1024, 3), PROBLEM),
    "cube": (cube_kernel(7, 3, 2), PROBLEM),
    "cube, swapped": (cube_kernel(4, 4, 4, swapped=True), PROBLEM),
    "column of threads": (cube_kernel(1, 1, 64), PROBLEM),
    "row of threads, swapped": (cube_kernel(32, 1, 1, swapped=True), PROBLEM),
    "3 maps each": (several_maps_kernel(3, 50), PROBLEM),
    "8 maps each": (several_maps_kernel(8, 128), PROBLEM),
    "warps": (warp_kernel(5, WARP_SUM), PROBLEM),
    "atomic sums": (shared_sum_kernel("atomicAdd(&total, sum);"), PROBLEM),
    "a tree of sums": (shared_sum_kernel(TREE_SUM), PROBLEM),
    "80 KB a thread": (flat_kernel(96, summed=LARGE), PROBLEM),
    "gemm, dynamic": (gemm_kernel(3, "fp32", dynamic=True), LinearProblem(45, 19, bias=True, activation="relu")),
    "gemm, static": (gemm_kernel(16, "fp32", dynamic=False), LinearProblem(45, 19, bias=True, activation="relu")),
    "max": (pool_kernel(32, "max"), PoolProblem(3, 9, 11, 3, 2, True)),
    "mean": (pool_kernel(77, "mean"), PoolProblem(3, 9, 11, 3, 2, False)),
    "double sums": (flat_kernel(96, summed=DOUBLE), PROBLEM),
    "Kahan's sums": (flat_kernel(96, summed=KAHAN), PROBLEM),
    "bounds and restrict": (flat_kernel(64, bounds="__launch_bounds__(64) ", r="__restrict__ "), PROBLEM),
    "unrolled": (flat_kernel(96, summed=sum_loops(pragma="#pragma unroll 2\n")), PROBLEM),
    "fma": (flat_kernel(96, summed=sum_loops(term="= fmaf(" + TERM.replace(" * w", ", w") + ", sum)")), PROBLEM),
    "strided": (flat_kernel(96), ConvProblem(3, 11, 9, 7, 2, 2)),
}
