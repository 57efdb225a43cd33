"""Define the registry rows of the kernels for two convolutions in one launch, with ReLU and pooling after each."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from app.base.precision import INTEGERS, storage_dtype
from app.kernels.plain_problems import Argument
from app.kernels.problems import ConvPairProblem
from app.kernels.scaling import Arrays, balance_convolutions, float16_parts, layer_scale
from app.kernels.variant import (
    ONLY_HOPPER,
    KernelLaunch,
    LaunchConfig,
    Packing,
    Parameters,
    Unfit,
    Variant,
    ceil_div,
    mma_row,
    wgmma_row,
)

# C, H, W, M, K and S of lenet5's convolutions.
SIZES = ((1, 28, 28, 32, 5, 1), (32, 12, 12, 64, 5, 1))
HOPPER_LIMITS = f"{ONLY_HOPPER}; lenet5's two convolutions without bias, from bytes"
# Bytes in shared memory: an image's pooled maps, its windows, and the second filters of a k step (conv_pair.cuh).
POOLED_IMAGE, WINDOWS, FILTER_STEP = 9216, 2880, 2048
Pack = Callable[[np.ndarray], np.ndarray]
BYTE, SIGNED = 255, 127  # greatest activation and greatest weight in int8


def _size_refusal_reason(problem: ConvPairProblem) -> str | None:
    first, second = problem.first, problem.second
    if (first.sizes, second.sizes) != SIZES or first.input_dtype != "uint8":
        return "serves lenet5's convolutions of bytes alone"
    if first.padding or second.padding:
        return "does not pad"
    if problem.resize is not None:
        return "enlarges no images"
    if any((part.activation, part.pool, part.pool_is_max) != ("relu", 2, False) for part in (first, second)):
        return "serves ReLU and 2 x 2 average pooling alone"
    return None


def wgmma_refusal_reason(problem: ConvPairProblem, exact: bool = False) -> str | None:
    """Return why a wgmma kernel cannot compute the problem, or None. exact: it requires weights exact in float16."""
    if problem.exact != exact:
        return "serves weights exact in float16 alone" if exact else "multiplies both halves of weights"
    reason = _size_refusal_reason(problem)
    if reason is None and (problem.first.bias or problem.second.bias):
        return "adds no bias"
    if reason is None and problem.second.output_dtype != storage_dtype(problem.dtype):
        return f"stores {storage_dtype(problem.dtype)}"
    return reason


def configure_persistent(problem: ConvPairProblem, warpgroups: int, shared: int) -> LaunchConfig:
    """Return a configuration with at most one block per multiprocessor. shared: bytes of shared memory per block."""
    integers, parts, maps = problem.dtype == INTEGERS, problem.weight_parts, problem.second.maps
    takes = (
        Argument("filters1", "float16", fixed=parts * 2 * 3 * 128 * 8),
        Argument("filters2", "int8" if integers else "float16", fixed=parts * problem.second.reduction_length * maps),
        Argument("scales", "float32", fixed=maps if integers else 2),
    )
    launch = KernelLaunch(128 * warpgroups, lambda n: (n, 1, 1), shared_bytes=shared, persistent=True)
    pack = pack_int8_filters if integers else pack_convolutions
    return LaunchConfig({}, (launch,), packing=Packing(takes, partial(pack, problem)))


def _configure_wgmma(problem: ConvPairProblem, _: Parameters) -> LaunchConfig:
    return configure_persistent(problem, 5, 50 * FILTER_STEP + 5 * (2 * POOLED_IMAGE + 2 * WINDOWS) + 16)


def _configure_wgmma_split(problem: ConvPairProblem, _: Parameters) -> LaunchConfig:
    stages = 12
    return configure_persistent(problem, 3, stages * (4 * FILTER_STEP + 8 + 4) + 3 * (4 * POOLED_IMAGE + 2 * WINDOWS))


def _configure_wgmma_exact(problem: ConvPairProblem, _: Parameters) -> LaunchConfig:
    return configure_persistent(problem, 3, 50 * FILTER_STEP + 3 * (4 * POOLED_IMAGE + 2 * WINDOWS) + 8)


def _configure_wgmma_int8(problem: ConvPairProblem, parameters: Parameters) -> LaunchConfig:
    images, warpgroups = parameters["images"], parameters["warpgroups"]
    # Registers of both convolutions, as ptxas counts them; a thread gets a multiple of eight.
    if images > 4 or max(32 * images + 31, 80) > 64 // warpgroups * 8:
        raise Unfit(f"there are no registers for {images} images in each of {warpgroups} warpgroups")
    shared = problem.second.kernel**2 * FILTER_STEP + warpgroups * (images * POOLED_IMAGE // 2 + 2 * WINDOWS) + 8
    constants: dict[str, str | int] = {"IMAGES": images, "WARPGROUPS": warpgroups}
    return replace(configure_persistent(problem, warpgroups, shared), defines=constants)


def _configure_mma(problem: ConvPairProblem, _: Parameters) -> LaunchConfig:
    first, second = problem.first, problem.second
    warps = 4  # one warp per image, and one for each scheduler of a multiprocessor
    shared = warps * (problem.activation_parts * POOLED_IMAGE + 28 * 20 * 4)
    defines: dict[str, str | int] = {
        "OUTPUT": second.output_dtype,
        "HAS_BIAS1": int(first.bias),
        "HAS_BIAS2": int(second.bias),
        "SPLIT": problem.activation_parts - 1,
        "WEIGHT_PARTS": problem.weight_parts,
        "WARPS": warps,
    }
    bias1, bias2 = problem.arguments()[2:5:2]
    takes = (
        Argument("filters1", "float16", fixed=problem.weight_parts * 32 * first.maps),
        bias1,
        Argument("filters2", "float16", fixed=problem.weight_parts * second.reduction_length * second.maps),
        bias2,
        Argument("scales", "float32", fixed=2),
    )
    launch = KernelLaunch(32 * warps, lambda n: (ceil_div(n, warps), 1, 1), shared_bytes=shared)
    return LaunchConfig(defines, (launch,), packing=Packing(takes, partial(pack_for_mma, problem)))


# --- packing: reorder parameters for the tensor cores' instructions, and scale them into float16's range --------------


def _scaled_filter_parts(
    problem: ConvPairProblem, arrays: Arrays
) -> tuple[list[np.ndarray], float, np.ndarray | None, list[np.ndarray], float]:
    """Return parts1, scale1, bias1, parts2, scale2 of the parameters that ``balance_convolutions`` returns.

    parts1 (5, 5, 32), parts2 (32, 5, 5, 64): the filters times scale1 or scale2: [float16], or [high, low] if split.
    """
    w1, bias1, w2 = balance_convolutions(problem, arrays)
    w1 = w1.reshape(problem.first.kernel, problem.first.kernel, -1)
    w2 = w2.reshape(-1, problem.second.kernel, problem.second.kernel, problem.second.maps)
    scale1 = 1.0 if problem.activation_parts == 1 else layer_scale(w1)
    scale2 = layer_scale(w2, arrays[3])
    return float16_parts(problem, w1 * scale1), scale1, bias1, float16_parts(problem, w2 * scale2), scale2


def pack_convolutions(problem: ConvPairProblem, arrays: Arrays, pack2: Pack | None = None) -> list[np.ndarray | None]:
    """Pack (w1, bias1, w2, bias2) as [filters1, filters2, scales], for the wgmma kernels. Biases must be None.

    pack2: packs the second filters, (32, 5, 5, 64) float16; None for ``pack_core_matrices``.
    Kernels pool by adding up each window and may double the sum (``twice_pooled`` in conv_pair.cuh). scales[0] undoes
    the doubling and the filters' scale after the first convolution. scales[1] does the same after the second; it also
    turns the sums of both poolings into averages, and applies the pixel scale that exact weights do not contain.
    """
    parts1, scale1, _, parts2, scale2 = _scaled_filter_parts(problem, arrays)
    filters1 = np.stack([pack_window_fragments(part) for part in parts1])
    filters2 = np.stack([(pack2 or pack_core_matrices)(part) for part in parts2], axis=1)
    once = 1.0 if problem.activation_parts == 1 else 0.5 / scale1  # activations of one part are not doubled
    average = 0.5 * 0.25**2 / scale2 * problem.pixel_scale  # from twice the sums
    return [filters1.reshape(-1), filters2.reshape(-1), np.array([once, average], np.float32)]


def pack_int8_filters(problem: ConvPairProblem, arrays: Arrays, pack2: Pack | None = None) -> list[np.ndarray | None]:
    """Pack (w1, None, w2, None) as [filters1, filters2, scales] for int8 kernels. pack2: as in ``pack_convolutions``.

    The first convolution's results, summed over a pooling window, are scaled so that 1 becomes byte 255. scales holds
    each map's factor from integer sums to features.
    """
    w1, _, w2, _ = (None if array is None else array.astype(np.float64) for array in arrays)
    assert w1 is not None and w2 is not None
    filters1 = pack_window_fragments((w1 / 4).astype(np.float16).reshape(5, 5, -1))
    w2 = w2.reshape(-1, 5, 5, problem.second.maps)
    largest = np.abs(w2).max(axis=(0, 1, 2))
    steps = np.where(largest > 0, largest, 1.0) / SIGNED
    filters2 = (pack2 or pack_core_matrices)(np.rint(w2 / steps).astype(np.int8))
    return [filters1.reshape(-1), filters2.reshape(-1), (steps / (4 * BYTE)).astype(np.float32)]


def pack_window_fragments(filters: np.ndarray) -> np.ndarray:
    """Pack (5, 5, 32) as wgmma's A in registers: (even and odd maps, 3 k steps, 128 threads, 4 registers, 2).

    Row 16 w + 8 h + g of A is map 2 (4 w + g % 4) + odd, shifted right by 2 (g // 4) + h columns in a window of eight.
    The 16 columns of a k step are two filter rows: 0 and 2, 1 and 3, or 4 and zeros.
    """
    rows = np.zeros((2, 6, 4, 2, 8, 8), filters.dtype)  # axes: odd, filter row, w, h, g, column of the window
    for g in range(8):
        for h in range(2):
            moved = 2 * (g // 4) + h
            maps = filters[:, :, 2 * (g % 4) :: 8], filters[:, :, 2 * (g % 4) + 1 :: 8]  # for w = 0 to 3
            for odd in range(2):
                rows[odd, :5, :, h, g, moved : moved + 5] = maps[odd].transpose(0, 2, 1)
    steps = rows[:, [0, 2, 1, 3, 4, 5]].reshape(2, 3, 2, 4, 2, 8, 4, 2)  # axes: odd, step, k half, w, h, g, t, pair
    return np.ascontiguousarray(steps.transpose(0, 1, 3, 5, 6, 2, 4, 7)).reshape(2, 3, 128, 4, 2)


def pack_core_matrices(filters: np.ndarray) -> np.ndarray:
    """Pack (C, …, 64) as wgmma core matrices: (taps, C/channels, 8 groups of maps, 8 maps, channels). The dtype stays.

    channels: 8 in float16 or 16 in int8, the 16 contiguous bytes of a row of a core matrix.
    """
    parts = filters.reshape(-1, 16 // filters.itemsize, filters[0].size // 64, 8, 8)  # part, channel, tap, group, map
    return np.ascontiguousarray(parts.transpose(2, 0, 3, 4, 1))


def pack_for_mma(problem: ConvPairProblem, arrays: Arrays) -> list[np.ndarray | None]:
    """Pack (w1, bias1, w2, bias2) as [filters1, bias1, filters2, bias2, scales].

    scales: as in ``pack_convolutions``. Biases are divided by the pixel scale, because scales[1] multiplies by it.
    """
    scale = problem.pixel_scale
    w1, w2, *biases = arrays[0], arrays[2], *(None if b is None else b.astype(np.float64) / scale for b in arrays[1::2])
    arrays = [w1, biases[0], w2, biases[1]]
    parts1, scale1, bias1, parts2, scale2 = _scaled_filter_parts(problem, arrays)
    filters1 = np.stack([pack_tap_fragments(part) for part in parts1])
    filters2 = np.stack([pack_second_filter_fragments(part, 64 // problem.activation_parts) for part in parts2], axis=2)
    sums2 = 4 * scale2  # the second sums' scale
    scales = np.array([0.5 / scale1, 0.5 * 0.25 / sums2 * scale], np.float32)
    return [
        filters1.reshape(-1),
        _scale_bias(bias1, scale1),
        filters2.reshape(-1),
        _scale_bias(arrays[3], sums2),
        scales,
    ]


def _scale_bias(bias: np.ndarray | None, scale: float) -> np.ndarray | None:
    return None if bias is None else (bias.astype(np.float64) * scale).astype(np.float32)


def pack_tap_fragments(filters: np.ndarray) -> np.ndarray:
    """Pack (5, 5, 32) as mma's B: (4 tiles of 8 maps, 32 lanes, 4 words, 2). A zero pads each row to six taps.

    Lane 4 g + t has map g of a tile; its words are pairs of taps t, t + 4, t + 8 and t + 12 of 16, the last one zero.
    """
    taps = np.zeros((5, 6, 32), filters.dtype)
    taps[:, :5] = filters
    pairs = np.zeros((16, 2, 32), filters.dtype)
    pairs[:15] = taps.reshape(15, 2, 32)
    fragments = pairs.reshape(4, 4, 2, 4, 8)  # axes: word, t, pair, tile, g
    return np.ascontiguousarray(fragments.transpose(3, 4, 1, 0, 2)).reshape(4, 32, 4, 2)


def pack_second_filter_fragments(filters: np.ndarray, maps: int) -> np.ndarray:
    """Pack (32 channels, 5, 5, 64 maps) as mma's A: (passes, 50 k steps, tiles of 16 maps, 32 lanes, 4 registers, 2).

    A k step is one tap and 16 channels; a pass covers ``maps`` maps; a register holds two neighbouring channels.
    """
    # axes: step, half of k, t, pair, tap | pass, tile, half of the rows, g
    parts = filters.reshape(2, 2, 4, 2, 25, 64 // maps, maps // 16, 2, 8)
    fragments = parts.transpose(5, 4, 0, 6, 8, 2, 1, 7, 3)
    return np.ascontiguousarray(fragments).reshape(64 // maps, 50, maps // 16, 32, 4, 2)


hopper_row = partial(
    wgmma_row, "conv_pair", refuses=wgmma_refusal_reason, limits=HOPPER_LIMITS, reads_host=True, pools=True
)
ROWS: tuple[Variant, ...] = (
    mma_row(
        "conv_pair",
        1,
        "mma",
        configure=_configure_mma,
        dtypes=("float16", "float16x2"),
        summary="both convolutions with ReLU and pooling on chip, one image a warp: tensor-core products by mma",
        refuses=_size_refusal_reason,
        limits="lenet5's two convolutions of bytes",
        pools=True,
    ),
    hopper_row(
        2,
        "wgmma",
        configure=_configure_wgmma,
        dtypes=("float16",),
        since="mma",
        summary="both convolutions with ReLU and pooling on chip: warpgroup tensor-core products, float16",
    ),
    hopper_row(
        3,
        "wgmma_split",
        configure=_configure_wgmma_split,
        dtypes=("float16x2",),
        since="wgmma",
        summary="step 2 with each operand the sum of two float16: as exact as float32",
    ),
    hopper_row(
        4,
        "wgmma_exact",
        configure=_configure_wgmma_exact,
        dtypes=("float16x2",),
        since="wgmma-split",
        summary="step 3 for weights that are exact in float16: two products instead of three",
        refuses=partial(wgmma_refusal_reason, exact=True),
    ),
    hopper_row(
        5,
        "wgmma_int8",
        configure=_configure_wgmma_int8,
        dtypes=("int8",),
        since="wgmma",
        summary="step 2, its second convolution of 8-bit integers: exact sums, half the tensor-core time",
        tunables={"images": (1, 2, 3, 4), "warpgroups": (3, 4, 5, 6)},
        defaults=lambda _: {"images": 2, "warpgroups": 5},
    ),
)
