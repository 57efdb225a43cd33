"""Define the registry row of the wgmma matrix product, and pack its parameters."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from app.kernels.plain_problems import Argument
from app.kernels.problems import LONG_SUM, LinearProblem
from app.kernels.scaling import LOW_SCALE, float16_parts, float32_bias, scale_per_output
from app.kernels.variant import (
    BLOCK,
    NO_BLOCKS,
    ONLY_HOPPER,
    Action,
    Grid,
    KernelLaunch,
    LaunchConfig,
    Packing,
    Parameters,
    Unfit,
    Variant,
    activation_name,
    ceil_div,
    elementwise_grid,
    result_defines,
    wgmma_row,
)

DEPTH = 64  # terms of a sum per stage
MOST_TILE = 192  # most outputs per block
PRODUCERS = 128  # producer threads per block
SHARED = 227 << 10  # most bytes of shared memory per block
MOST_STAGES = 8
MOST_AHEAD = 13  # most steps of images that a producer requests ahead, if a block has registers for them
MOST_CLASSES = 16  # most classes that a fused argmax can compare, within a warp
# A step of a long sum takes 0.4 us in a block alone, so fa19's 316 steps take 125 us.
LONG_STEPS, SLICE_STEPS = LONG_SUM // DEPTH, 8  # sums of so many steps are cut into slices; steps per slice
SPLIT_TILE = 128  # most outputs per block that leave registers for the totals of slices if numbers are split
FEW_IMAGES = 512  # up to so many images, each slice has a separate block
REGISTERS = 512  # registers per thread, summed over a block's warpgroups, which divide them among themselves


def input_refusal_reason(problem: LinearProblem) -> str | None:
    """Return why the warpgroup kernels cannot read the layer's input; None if they can."""
    if problem.inputs % 8:
        return "takes multiples of 8 inputs"
    if problem.input_dtype not in ("uint8", "float32" if problem.activation_parts == 2 else "float16"):
        return "reads bytes, float16 in float16, float32 in float16x2"
    return None


def _refusal_reason(problem: LinearProblem) -> str | None:
    if problem.unbounded:
        return "splits numbers in float16's range alone"
    if problem.argmax and problem.outputs > MOST_CLASSES:
        return f"fuses argmax over at most {MOST_CLASSES} classes"
    return input_refusal_reason(problem)


def outputs_per_block(problem: LinearProblem) -> int:
    """Return the number of outputs that one block computes: all outputs of the layer if they are few enough."""
    return min(ceil_div(problem.outputs, 8) * 8, MOST_TILE)


def threads_per_block(tile: int) -> int:
    """Return the threads per block: a warpgroup for every 64 of ``tile`` outputs, and the producer threads."""
    return 128 * ceil_div(tile, 64) + PRODUCERS


def prefetched_steps(problem: LinearProblem) -> int:
    """Return how many steps of images a producer requests ahead; bytes take ten of its registers per step."""
    if problem.input_dtype != "uint8":
        return 1
    steps = ceil_div(problem.inputs, DEPTH)
    return min(steps, 4 if threads_per_block(outputs_per_block(problem)) >= REGISTERS else MOST_AHEAD)


def slice_count(problem: LinearProblem) -> int:
    """Return into how many slices the layer's sums are cut: 1 if they are short or an argmax is fused."""
    steps = ceil_div(problem.inputs, DEPTH)
    return 1 if steps < LONG_STEPS or problem.argmax else ceil_div(steps, SLICE_STEPS)


def _totals_bytes(problem: LinearProblem, rows: int) -> int:
    """Return the shared memory for the totals of slices of ``rows`` images, in bytes: 0 if registers hold them."""
    tile = outputs_per_block(problem)
    in_registers = slice_count(problem) == 1 or problem.dtype != "float16x2" or tile <= SPLIT_TILE
    return 0 if in_registers else 4 * tile * rows


def sliced_launches(whole: KernelLaunch, entry: str, grid: Callable[[int], Grid], finish: KernelLaunch) -> list[Action]:
    """Return the launches of a kernel with sliced sums: few images take slices, then ``finish``; more take ``whole``.

    whole: its blocks compute all slices. entry: its function. grid: a block per slice. finish: adds the slices.
    """

    def for_few(blocks: Callable[[int], Grid], few: bool) -> Callable[[int], Grid]:
        return lambda images: blocks(images) if (images <= FEW_IMAGES) == few else NO_BLOCKS

    return [
        replace(whole, entry=f"{entry}_slice", grid=for_few(grid, True)),
        replace(finish, entry=f"{entry}_finish", grid=for_few(finish.grid, True)),
        replace(whole, grid=for_few(whole.grid, False)),
    ]


def slices_workspace(problem: LinearProblem, outputs: int) -> tuple[Argument, ...]:
    """Return the workspace for the sums of slices, each of ``outputs`` padded outputs; empty for short sums."""
    count = slice_count(problem)
    return (Argument("slices", "float32", fixed=FEW_IMAGES * count * outputs),) if count > 1 else ()


def pipeline_defines(problem: LinearProblem, rows: int, fixed: int = 0) -> dict[str, str | int]:
    """Return the constants of the pipeline in ``warpgroup_product.cuh`` for blocks of ``rows`` images.

    fixed: bytes of shared memory other than the stages. Raises Unfit.
    """
    if rows not in (40, 80):
        raise Unfit("multiplies for 40 or 80 images at a time")
    tile = outputs_per_block(problem)
    stage = 2 * DEPTH * (problem.weight_parts * tile + problem.activation_parts * (rows + 1))
    slices = slice_count(problem)
    steps = ceil_div(problem.inputs, DEPTH) // slices  # least number of steps per block
    stages = max(min(steps, MOST_STAGES, (SHARED - fixed) // (stage + 16)), 1)
    producers = 80 if problem.input_dtype == "uint8" or problem.activation_parts == 2 else 40
    return {
        "INPUTS": problem.inputs,
        "INPUT": problem.input_dtype,
        "ACTIVATION": activation_name(problem.activation),
        "PARTS": problem.activation_parts,
        "WEIGHT_PARTS": problem.weight_parts,
        "SPLIT": int(problem.dtype == "float16x2"),
        "LOW_SCALE": LOW_SCALE,
        "TILE": tile,
        "ROWS": rows,
        "SLICES": slices,
        "STAGES": stages,
        "AHEAD": prefetched_steps(problem),
        "LAG": max(min(stages - 2, steps - 1), min(1, stages - 1, steps - 1)),  # 0 if there is one stage
        "PRODUCER_REGISTERS": producers,
        "CONSUMER_REGISTERS": (REGISTERS - producers) // ceil_div(tile, 64) // 8 * 8,
        "SHARED_BYTES": stages * (stage + 16) + fixed,
    }


def packed_size(problem: LinearProblem) -> int:
    """Return the number of float16 in the packed weights."""
    tile = outputs_per_block(problem)
    return ceil_div(problem.outputs, tile) * ceil_div(problem.inputs, DEPTH) * problem.weight_parts * DEPTH * tile


def _configure(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    rows, tile = parameters["ROWS"], outputs_per_block(problem)
    defines = pipeline_defines(problem, rows, _totals_bytes(problem, rows)) | {
        "OUTPUTS": problem.outputs,
        "OUTPUT": problem.output_dtype,
        "HAS_BIAS": int(problem.bias),
        **result_defines(problem),
    }
    takes = (
        Argument("w", "float16", fixed=packed_size(problem)),
        Argument("factors", "float32", fixed=problem.outputs),
        Argument("bias", "float32", fixed=problem.outputs, optional=not problem.bias),
    )
    across, slices = ceil_div(problem.outputs, tile), slice_count(problem)
    launch = KernelLaunch(
        threads_per_block(tile),
        lambda images: (ceil_div(images, rows), across, 1),
        shared_bytes=int(defines["SHARED_BYTES"]),
    )
    packing = Packing(takes, partial(pack_parameters, problem))
    if slices == 1:
        return LaunchConfig(defines, (launch,), packing=packing)
    finish = KernelLaunch(BLOCK, elementwise_grid(problem.outputs))
    actions = sliced_launches(launch, "gemm_warpgroup", lambda n: (ceil_div(n, rows), across, slices), finish)
    return LaunchConfig(defines, tuple(actions), slices_workspace(problem, problem.outputs), packing=packing)


def pack_parameters(problem: LinearProblem, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """Pack (w, bias) as [core matrices of w, factors, bias]; each output is scaled by a power of two."""
    scaled, scales = scale_per_output(problem, arrays)
    return [pack_core_matrices(problem, scaled), (1 / scales).astype(np.float32), float32_bias(arrays[1])]


def pack_core_matrices(problem: LinearProblem, weights: np.ndarray) -> np.ndarray:
    """Pack scaled weights (inputs, outputs) as wgmma's operand A in shared memory: flat, zero-padded.

    Axes: (tiles of outputs, k steps, parts, 8 planes, tile, 8 inputs).
    """
    tile = outputs_per_block(problem)
    steps, across = ceil_div(problem.inputs, DEPTH), ceil_div(problem.outputs, tile)
    padded = np.zeros((steps * DEPTH, across * tile))
    padded[: problem.inputs, : problem.outputs] = weights
    parts = [
        part.reshape(steps, DEPTH // 8, 8, across, tile).transpose(3, 0, 1, 4, 2)
        for part in float16_parts(problem, padded, LOW_SCALE)
    ]
    return np.stack(parts, axis=2).reshape(-1)


ROWS: tuple[Variant, ...] = (
    wgmma_row(
        "gemm",
        9,
        "warpgroup",
        system="none",
        configure=_configure,
        dtypes=("float16", "float16x2"),
        since="tensor-core",
        refuses=_refusal_reason,
        limits=f"{ONLY_HOPPER}; multiples of 8 inputs, argmax over at most {MOST_CLASSES} classes",
        tunables={"ROWS": (40, 80)},
        defaults=lambda _: {"ROWS": 80},
    ),
)
