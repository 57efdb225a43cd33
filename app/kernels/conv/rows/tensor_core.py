"""Define the registry row of the tensor-core convolution, estimate its time, and pack its filters for mma."""

from functools import cache, partial
from itertools import product
from math import inf, prod
from typing import NamedTuple

import numpy as np

from app.kernels.conv.rows.register_patch import REGISTERS, estimated_patch_time, map_block_count
from app.kernels.problems import ConvProblem
from app.kernels.scaling import round_to_tf32, split_tf32
from app.kernels.tensor_cores import tf32_split_is_worthwhile
from app.kernels.variant import (
    KernelLaunch,
    LaunchConfig,
    Parameters,
    Unfit,
    Variant,
    ceil_div,
    conv_size_defines,
    mma_row,
    pooling_defines,
    type_defines,
    weight_reordering_packing,
)

TENSOR_TUNABLES = {
    "MT": (1, 2, 3, 4),
    "NT": (2, 3, 4, 6, 8),
    "WARPS_M": (1, 2),
    "WARPS_N": (2, 4, 8),
    "CK": (1, 4, 8, 12, 16, 32),
}


class Costs(NamedTuple):
    """The cost model of one arithmetic: times in units of the time of one mma.

    pixels: to load the pixels of one mma from shared memory. k_step: for the rest of a warp's k step. staging: to copy
    a word of pixels to shared memory. filters: to copy four words of filters. step: for the rest of a block's step.
    outputs: to store 32 results. hiding: exponent of the share of resident warps, which hide latency.
    """

    pixels: float
    k_step: float
    staging: float
    filters: float
    step: float
    outputs: float
    hiding: float


# Fitted to times on an H100 (tfloat32: an H200): docs/fast-path.md, "The cost models".
FLOAT16_COSTS = Costs(3.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.5)
TFLOAT32_COSTS = Costs(1.4, 6.0, 0.0, 0.17, 9.0, 0.4, 0.4)
MOST_WARPS = 32  # per multiprocessor: more warps hide no more latency
OTHER_REGISTERS = 40  # per thread, besides its sums
# dtype → how many products CUDA cores compute in the time of one mma, and in the extra time to store a result.
CUDA_CORE_PRODUCTS = {"float16": (160.0, 16.0), "float16x2": (100.0, 0.0)}
SHARED, MOST_SHARED = 227 << 10, 64 << 10  # bytes per multiprocessor; per block, as smaller GPUs have them


class FilterWords:
    """Packs filters as mma operands: k steps of ``channels`` channels, each in 32-bit words.

    A word holds one tfloat32 or two float16: neighbouring channels, or neighbouring taps if there is one channel. Split
    filters consist of high parts, then low parts, in separate words.
    """

    def __init__(self, problem: ConvProblem, channels: int) -> None:
        self.problem, self.channels = problem, channels
        self.half, self.parts = problem.dtype == "float16", 2 if problem.dtype == "float16x2" else 1
        self.pairs_of_taps = self.half and problem.channels == 1
        self.steps = ceil_div(problem.channels, channels)
        # Words per tap and k step, words per row of a filter, and mma instructions per k step (eight words each).
        self.planes = ceil_div(channels, 2) if self.half and problem.channels > 1 else channels
        self.taps_q = ceil_div(problem.kernel, 2) if self.pairs_of_taps else problem.kernel
        self.k_steps = ceil_div(self.planes * problem.kernel * self.taps_q, 8)

    def pack_fragments(self, weights: np.ndarray, m_tiles: int) -> np.ndarray:
        """Pack weights (C, K, K, M) as mma operand A, padded with zeros.

        The result is (blocks, steps, parts, k_steps, m_tiles, 32 lanes, 4 words, numbers per word). Filters that are
        not split have no axis ``parts``.
        """
        c, k, m = self.problem.channels, self.problem.kernel, self.problem.maps
        width = 2 if self.half else 1
        filters = weights.reshape(c, k, k, m)
        if self.pairs_of_taps:
            filters = np.pad(filters, ((0, 0), (0, 0), (0, 2 * self.taps_q - k), (0, 0)))
            filters = filters.reshape(1, 1, k, self.taps_q, width, m).transpose(0, 2, 3, 1, 5, 4)
        else:
            per_step = self.planes * width
            filters = np.pad(filters, ((0, self.steps * self.channels - c), (0, 0), (0, 0), (0, 0)))
            filters = filters.reshape(self.steps, self.channels, k, k, m)
            filters = np.pad(filters, ((0, 0), (0, per_step - self.channels), (0, 0), (0, 0), (0, 0)))
            filters = filters.reshape(self.steps, self.planes, width, k, k, m).transpose(0, 3, 4, 1, 5, 2)
        # (steps, words, maps, numbers per word), padded to whole fragments of 16 maps x 8 words.
        words = filters.reshape(self.steps, -1, m, width)
        padding = (8 * self.k_steps - words.shape[1], -m % (16 * m_tiles))
        words = np.pad(words, ((0, 0), (0, padding[0]), (0, padding[1]), (0, 0)))
        # Lane 4 g + t holds word t of maps g and g + 8, then word t + 4 of both.
        parts = words.reshape(self.steps, self.k_steps, 2, 4, -1, m_tiles, 2, 8, width)
        ordered = parts.transpose(4, 0, 1, 5, 7, 3, 2, 6, 8)
        if self.parts == 2:
            return np.stack(split_tf32(ordered), axis=2)
        return ordered if self.half else round_to_tf32(ordered)


class TileLayout(NamedTuple):
    """The tile that a block computes, its shared memory, and the grid.

    images, rows, columns: pixels of a tile. plane: 32-bit words of a channel's (or channel pair's) pixels in shared
    memory. blocks: number of blocks along the maps. per_image: tiles per image, or per group of ``images`` images.
    """

    words: FilterWords
    images: int
    rows: int
    columns: int
    plane: int
    shared_bytes: int
    blocks: int
    per_image: int


def _tile_layout(problem: ConvProblem, parameters: Parameters) -> TileLayout:
    """Return the layout of a block's tile and shared memory. Raises Unfit."""
    mt, nt, warps_m, warps_n, ck = (parameters[name] for name in TENSOR_TUNABLES)
    words = FilterWords(problem, ck)
    if words.half and problem.channels > 1 and ck % 2:
        raise Unfit("float16 channels are staged in pairs")
    if ck > _max_staged_channels(problem):
        raise Unfit(f"there are only {problem.channels} channels to stage")
    sums = _sums_per_thread(words, parameters)
    if sums > 128:
        raise Unfit(f"{sums} sums do not fit in a thread's registers")
    height, width = problem.conv_output_size
    images, rows, columns = _tile_of_whole_windows(problem, 8 * nt * warps_n)
    in_rows, pitch = ((size - 1) * problem.stride + problem.kernel for size in (rows, columns))
    # As in the kernel: how many neighbouring pixels a lane stores, and the distance of planes that this needs.
    run = next((size for size in (4, 2) if nt % size == 0 and width % (2 * size) == columns % (2 * size) == 0), 1)
    apart = {4: 2, 2: 18, 1: 8}[run]
    plane = (in_rows * pitch + 31 - apart) // 32 * 32 + apart
    m_tiles = mt * warps_m
    input_parts = words.parts if problem.input_dtype == "float32" else 1  # other inputs are exact in one
    operands = input_parts * images * words.planes * plane + words.parts * words.k_steps * m_tiles * 128
    operands += 8 * words.k_steps
    pooled = 16 * m_tiles * (images * rows * columns // 2 * 2 + 1) if problem.pool > 1 else 0
    blocks = map_block_count(problem.maps, 16 * m_tiles)
    per_image = ceil_div(height, rows) * ceil_div(width, columns)
    return TileLayout(words, images, rows, columns, plane, 4 * max(operands, pooled), blocks, per_image)


def _max_staged_channels(problem: ConvProblem) -> int:
    """Return the most channels to stage in shared memory at a time: all; odd numbers above 1 are rounded up."""
    return 1 if problem.channels == 1 else ceil_div(problem.channels, 2) * 2


def _sums_per_thread(words: FilterWords, parameters: Parameters) -> int:
    """Return how many sums a thread holds in registers; split operands need three for each result."""
    return parameters["MT"] * parameters["NT"] * 4 * (3 if words.parts == 2 else 1)


@cache
def _tensor_defaults(problem: ConvProblem) -> dict[str, int]:
    """Return the parameters with the least estimated time. CK may also be the number of channels."""
    most = _max_staged_channels(problem)
    tried = TENSOR_TUNABLES | {"CK": [*dict.fromkeys(ck for ck in (*TENSOR_TUNABLES["CK"], most) if ck <= most)]}
    points = (dict(zip(tried, values, strict=True)) for values in product(*tried.values()))
    return min(points, key=partial(_estimated_time, problem))


def _estimated_time(problem: ConvProblem, parameters: Parameters) -> tuple[bool, float]:
    """Return a sort key: whether a block exceeds MOST_SHARED, then an image's time in units of the time of one mma."""
    try:
        layout = _tile_layout(problem, parameters)
    except Unfit:
        return True, inf
    words, warps = layout.words, parameters["WARPS_M"] * parameters["WARPS_N"]
    registers = ceil_div(_sums_per_thread(words, parameters) + OTHER_REGISTERS, 8) * 8
    resident = min(SHARED // (layout.shared_bytes + 1024), 64 // warps, REGISTERS // (32 * warps * registers))
    if not resident:
        return True, inf
    costs = TFLOAT32_COSTS if problem.dtype == "tfloat32" else FLOAT16_COSTS
    mt, nt, m_tiles = parameters["MT"], parameters["NT"], parameters["MT"] * parameters["WARPS_M"]
    blocks = layout.per_image * layout.blocks / layout.images  # for an image
    steps = blocks * words.steps
    each = mt * nt * (3 if words.parts == 2 else 1) + costs.pixels * words.parts * nt + costs.k_step
    time = steps * words.k_steps * (warps * each + costs.filters * m_tiles * 4)
    time += steps * (costs.staging * layout.images * words.planes * layout.plane * words.parts + costs.step)
    time += costs.outputs * blocks * m_tiles * nt * parameters["WARPS_N"] * 4
    hidden = min(resident * warps / MOST_WARPS, 1.0) ** costs.hiding
    return layout.shared_bytes > MOST_SHARED, time / hidden


def _tile_of_whole_windows(problem: ConvProblem, pixels: int) -> tuple[int, int, int]:
    """Return (images, rows, columns) of a block's tile: at most ``pixels`` pixels, in whole pooling windows.

    Raises Unfit if one pooling window has more pixels.
    """
    height, width = problem.conv_output_size
    pool = problem.pool
    columns = _whole_window_pixels(pixels // min(height, pool), width, pool)
    rows = _whole_window_pixels(pixels // columns, height, pool) if columns else 0
    if not rows:
        raise Unfit(f"a window of {pool} x {pool} pixels exceeds a block's {pixels}")
    rows = min(ceil_div(ceil_div(height, ceil_div(height, rows)), pool) * pool, height)  # bands of equal height
    return max(pixels // (height * width), 1), rows, columns


def _whole_window_pixels(most: int, size: int, pool: int) -> int:
    """Return the pixels along one side of a tile: ``size`` if at most ``most``, else as many whole windows as fit."""
    return size if size <= most else most // pool * pool


def _configure_tensor_core(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    layout = _tile_layout(problem, parameters)
    words, images, blocks = layout.words, layout.images, layout.blocks
    m_tiles = parameters["MT"] * parameters["WARPS_M"]
    tile: dict[str, str | int] = {
        "IMAGES": images,
        "ROWS": layout.rows,
        "COLUMNS": layout.columns,
        "SPLIT": words.parts - 1,
    }
    launch = KernelLaunch(
        32 * parameters["WARPS_M"] * parameters["WARPS_N"],
        lambda n: (ceil_div(n, images) * layout.per_image, blocks, 1),
        shared_bytes=layout.shared_bytes,
    )
    return LaunchConfig(
        type_defines(problem) | conv_size_defines(problem) | pooling_defines(problem) | dict(parameters) | tile,
        (launch,),
        packing=weight_reordering_packing(
            problem,
            blocks * words.steps * words.k_steps * m_tiles * 128 * (2 if words.half else words.parts),
            lambda w: words.pack_fragments(w, m_tiles),
        ),
    )


def _refusal_reason(problem: ConvProblem) -> str | None:
    return "splits numbers of any range, and all weights" if problem.bounded or problem.exact else None


def _tensor_cores_are_worthwhile(problem: ConvProblem, arch: str) -> bool:
    """Return whether tensor cores are estimated to be faster than CUDA cores (register-patch)."""
    if problem.dtype not in CUDA_CORE_PRODUCTS:
        return True
    if not tf32_split_is_worthwhile(problem, arch):
        return False
    products, stores = CUDA_CORE_PRODUCTS[problem.dtype]
    _, time = _estimated_time(problem, _tensor_defaults(problem))
    outputs = problem.maps * prod(problem.conv_output_size)
    return products * time + stores * outputs < estimated_patch_time(problem)


ROWS: tuple[Variant, ...] = (
    mma_row(
        "conv",
        15,
        "tensor_core",
        configure=_configure_tensor_core,
        dtypes=("float16", "float16x2", "tfloat32"),
        since="implicit-gemm",
        refuses=_refusal_reason,
        limits="tensor cores of sm_80 and later",
        pools=True,
        worthwhile=_tensor_cores_are_worthwhile,
        tunables=TENSOR_TUNABLES,
        defaults=_tensor_defaults,
    ),
)
