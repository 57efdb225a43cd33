"""Define the registry row of the kernel that computes any two convolutions in one launch; pack its parameters."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from app.kernels.fused.conv_pair import SIZES
from app.kernels.plain_problems import Argument, ResizeProblem
from app.kernels.problems import ConvPairProblem, ConvProblem
from app.kernels.scaling import BOUNDED, Arrays, activation_scales, float16_parts, power_of_two_scales
from app.kernels.variant import (
    NO_BLOCKS,
    Grid,
    KernelLaunch,
    LaunchConfig,
    Packing,
    Parameters,
    Variant,
    activation_name,
    ceil_div,
    mma_row,
)

WINDOW = 8  # pixels per row of a window in the first convolution, padded; a k step has two rows
MOST_SIZE = 128  # most pixels per side of resized images
SLACK = 8  # words behind the last row that the last k step reads and multiplies by zero
THREADS = 256
BANDS = 8  # blocks per image if images are few
FEW_IMAGES = 16  # the blocks of so many images each have a multiprocessor on an H100


def refusal_reason(problem: ConvPairProblem) -> str | None:
    """Return why the kernel cannot compute the problem; None if it can. Shared memory is not checked."""
    first, second = problem.first, problem.second
    if first.input_dtype != "uint8":
        return "reads bytes"
    if (first.sizes, second.sizes) == SIZES:
        return "leaves lenet5's convolutions to the kernels that are cut for them"
    if first.kernel > WINDOW:
        return f"serves first kernels of at most {WINDOW} x {WINDOW}"
    if problem.resize is not None and problem.resize.size > MOST_SIZE:
        return f"enlarges images to at most {MOST_SIZE} x {MOST_SIZE}"
    if second.output_dtype != ("float32" if problem.activation_parts == 2 else "float16"):
        return "stores float16 in float16, float32 in float16x2"
    return None


def _pixel_stride_words(problem: ConvPairProblem) -> int:
    """Return the stride between pixels in the first convolution's results, in words of two maps, as in the .cu file."""
    words, second = ceil_div(problem.first.maps, 2), problem.second
    apart = second.pool * second.stride
    return words if words % 8 else words + (4 if apart % 2 else 2 if apart % 4 else 1)


def image_source(problem: ConvPairProblem) -> ConvProblem | ResizeProblem:
    """Return the problem that reads the images: the resizing if there is one, else the first convolution."""
    return problem.first if problem.resize is None else problem.resize


def padded_image_words(problem: ConvPairProblem) -> int:
    """Return the number of 32-bit words of an image: one per pixel, with padding, and SLACK more at its end."""
    first = problem.first
    return first.channels * (first.height + 2 * first.padding) * (first.width + 2 * first.padding) + SLACK


def _round_up(number: int, to: int) -> int:
    return ceil_div(number, to) * to


def window_fragments_size(problem: ConvPairProblem) -> int:
    """Return the number of float16 in the first convolution's packed filters, in one half if they are split."""
    first = problem.first
    return ceil_div(first.channels * first.kernel, 2) * ceil_div(first.maps, 8) * 128


def _row_fragments_size(problem: ConvPairProblem) -> int:
    """Return the number of float16 in the second convolution's packed filters, in one half if they are split."""
    first, second = problem.first, problem.second
    steps = second.kernel * ceil_div(second.kernel * ceil_div(first.maps, 2), 8)
    return steps * ceil_div(second.maps, 8) * 128


def configure(problem: ConvPairProblem, _: Parameters) -> LaunchConfig:
    """Return the configuration of two launches: ``BANDS`` blocks per image for few images, one block for more."""
    first, second, source = problem.first, problem.second, image_source(problem)
    filters = [problem.weight_parts * size(problem) for size in (window_fragments_size, _row_fragments_size)]
    high, wide = first.pooled_size
    maps = (high + 2 * second.padding) * (wide + 2 * second.padding) * _pixel_stride_words(problem) + SLACK
    pixels = source.channels * source.height * source.width
    if problem.resize is not None:
        maps = max(maps, ceil_div(first.channels * source.height * first.width, 2))
    shared = (
        4 * _round_up(padded_image_words(problem), 4)
        + 4 * problem.activation_parts * _round_up(maps, 4)
        + 2 * sum(filters)
        + _round_up(pixels, 16)
    )
    defines = convolution_defines(problem) | {
        "BANDS": BANDS,
        "MAPS_WORDS": maps,
        "THREADS": THREADS,
        # Up to three blocks share an SM if their shared memory and registers allow it.
        "BLOCKS": 3 if shared <= 75 << 10 and problem.activation_parts == 1 else 2 if shared <= 113 << 10 else 1,
    }
    takes = packed_arguments(problem, filters[1], _round_up(second.maps, 2))

    def few_grid(images: int) -> Grid:
        return (images, BANDS, 1) if images <= FEW_IMAGES else NO_BLOCKS

    def grid(images: int) -> Grid:
        return (images, 1, 1) if images > FEW_IMAGES else NO_BLOCKS

    whole = KernelLaunch(THREADS, grid, shared_bytes=shared)
    few = replace(whole, grid=few_grid, entry="conv_pair_mma_any_few")
    return LaunchConfig(defines, (few, whole), packing=Packing(takes, partial(pack_parameters, problem)))


def convolution_defines(problem: ConvPairProblem) -> dict[str, str | int]:
    """Return the compile-time constants of ``any_convolution.cuh`` and ``any_image.cuh``."""
    first, resize, source = problem.first, problem.resize, image_source(problem)
    return {
        "C1": first.channels,
        "H0": source.height,
        "W0": source.width,
        "RESIZED": int(resize is not None),
        "COURSE": int(resize is not None and resize.rule == "course"),
        "H1": first.height,
        "W1": first.width,
        "PARTS": problem.activation_parts,
        "WEIGHT_PARTS": problem.weight_parts,
        "OUTPUT": problem.second.output_dtype,
        "SCALED1": int(scales_after_activation(problem)),
        **_defines_of_convolution(1, first),
        **_defines_of_convolution(2, problem.second),
    }


def packed_arguments(problem: ConvPairProblem, filters2: int, maps2: int) -> tuple[Argument, ...]:
    """Return the kernel's arguments between x and y. filters2, maps2: numbers in the second filters and factors."""
    first, second, float32 = problem.first, problem.second, partial(Argument, dtype="float32")
    even = _round_up(first.maps, 2)
    return (
        Argument("filters1", "float16", fixed=problem.weight_parts * window_fragments_size(problem)),
        float32("factors1", fixed=(1 + scales_after_activation(problem)) * even),
        float32("bias1", fixed=even, optional=not first.bias),
        Argument("filters2", "float16", fixed=filters2),
        float32("factors2", fixed=maps2),
        float32("bias2", fixed=maps2, optional=not second.bias),
    )


def scales_after_activation(problem: ConvPairProblem) -> bool:
    """Return whether the first convolution's maps are scaled after its activation, because it preserves no factor."""
    return problem.activation_parts == 2 and problem.first.activation in BOUNDED


def _defines_of_convolution(number: int, problem: ConvProblem) -> dict[str, str | int]:
    high, wide = problem.pooled_size
    named: dict[str, str | int] = {
        "K": problem.kernel,
        "S": problem.stride,
        "P": problem.padding,
        "M": problem.maps,
        "HAS_BIAS": int(problem.bias),
        "POOL": problem.pool,
        "MAX": int(problem.pool_is_max),
        "ACT": activation_name(problem.activation),
        "PH": high,
        "PW": wide,
    }
    return {f"{name}{number}": value for name, value in named.items()}


# --- packing: weights as the instructions read them, scaled into float16's range --------------------------------------


def pack_row_fragment_parts(parts: list[np.ndarray]) -> np.ndarray:
    """Pack the second filters, [rounded] or [high half, low half] of (C, K, K, M) each, as a flat array."""
    return np.stack([pack_row_fragments(part) for part in parts]).reshape(-1)


def pack_parameters(
    problem: ConvPairProblem, arrays: Arrays, pack2: Callable[[list[np.ndarray]], np.ndarray] = pack_row_fragment_parts
) -> list[np.ndarray | None]:
    """Pack (w1, bias1, w2, bias2) as [filters1, factors1, bias1, filters2, factors2, bias2].

    Each map's weights are scaled by a power of two, and its factor divides the sums by the same power. pack2: packs the
    scaled parts of the second filters, (C, K, K, M) each.
    """
    w1, bias1, w2, bias2 = arrays
    assert w1 is not None and w2 is not None
    first, second = problem.first, problem.second
    between = activation_scales(problem, arrays)
    if problem.activation_parts == 1 and first.activation in BOUNDED:
        between = np.ones_like(between)  # float16 represents them unscaled
    folded = np.ones_like(between) if scales_after_activation(problem) else between
    w1 = w1.astype(np.float64).reshape(first.channels, first.kernel, first.kernel, first.maps)
    w2 = w2.astype(np.float64).reshape(first.maps, second.kernel, second.kernel, second.maps)
    w2 = w2 / between[:, None, None, None]
    scales1, scales2 = (power_of_two_scales(np.abs(w).max(axis=(0, 1, 2))) for w in (w1, w2))
    filters1 = np.stack([pack_window_fragments(part) for part in float16_parts(problem, w1 * scales1)])
    filters2 = pack2(float16_parts(problem, w2 * scales2))
    return [
        filters1.reshape(-1),
        np.concatenate(
            [
                _pad_to_even(problem.pixel_scale * folded / scales1),
                *([_pad_to_even(between)] * scales_after_activation(problem)),
            ]
        ),
        None if bias1 is None else _pad_to_even(bias1.astype(np.float64) * folded),
        filters2,
        _pad_to_even(1 / scales2),
        None if bias2 is None else _pad_to_even(bias2),
    ]


def pack_window_fragments(filters: np.ndarray) -> np.ndarray:
    """Pack (C, K, K, M) as mma's B: (k steps, columns of 8 maps, 32 lanes, 2 registers, 2).

    A k step of 16 is two rows of a window, each of one channel and eight pixels wide.
    """
    channels, kernel, _, maps = filters.shape
    steps, columns = ceil_div(channels * kernel, 2), ceil_div(maps, 8)
    padded = np.zeros((2 * steps, WINDOW, 8 * columns), filters.dtype)
    padded[: channels * kernel, :kernel, :maps] = filters.reshape(-1, kernel, maps)
    # axes: step, half of k, t, pair, column, g
    return np.ascontiguousarray(padded.reshape(steps, 2, 4, 2, columns, 8).transpose(0, 4, 5, 2, 1, 3))


def pack_row_fragments(filters: np.ndarray) -> np.ndarray:
    """Pack (C, K, K, M) as mma's B: (K rows, k steps, columns of 8 maps, 32 lanes, 2 registers, 2).

    k runs along a row of a window: all channels of a pixel, padded to an even number, then those of the next.
    """
    channels, kernel, _, maps = filters.shape
    even, columns = _round_up(channels, 2), ceil_div(maps, 8)
    steps = ceil_div(kernel * even, 16)
    rows = np.zeros((kernel, kernel, even, 8 * columns), filters.dtype)
    rows[:, :, :channels, :maps] = filters.transpose(1, 2, 0, 3)
    padded = np.zeros((kernel, 16 * steps, 8 * columns), filters.dtype)
    padded[:, : kernel * even] = rows.reshape(kernel, -1, 8 * columns)
    # axes: row, step, half of k, t, pair, column, g
    return np.ascontiguousarray(padded.reshape(kernel, steps, 2, 4, 2, columns, 8).transpose(0, 1, 5, 6, 3, 2, 4))


def _pad_to_even(numbers: np.ndarray) -> np.ndarray:
    return np.pad(numbers, (0, len(numbers) % 2)).astype(np.float32)


ROWS: tuple[Variant, ...] = (
    mma_row(
        "conv_pair",
        0,
        "mma_any",
        configure=configure,
        dtypes=("float16", "float16x2"),
        summary="any two convolutions with all that follows them, from the bytes to the features on chip: mma, one "
        "image a block",
        refuses=refusal_reason,
        limits="bytes, two convolutions in a row that fit in shared memory",
        pools=True,
        reads_host=True,
    ),
)
