"""The registry row of the matrix product by warpgroup tensor-core instructions, and its packed parameters."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from app.kernels.fused.scaling import LOW_SCALE, parts_of, scaled_outputs
from app.kernels.plain_problems import Argument
from app.kernels.problems import LinearProblem
from app.kernels.variant import KernelLaunch, LaunchConfig, Packing, Parameters, Unfit, Variant, activation_name, tiles

DEPTH = 64  # terms of the sum per stage
MOST_TILE = 192  # outputs of a block
PRODUCERS = 128
SHARED = 227 << 10  # bytes that the stages may fill
MOST_STAGES = 8
REGISTERS = 512  # of one thread in each of the 128-thread groups together, shared out between the groups


def _refuses(problem: LinearProblem) -> str | None:
    if problem.argmax:
        return "computes no argmax"
    if problem.inputs % 8:
        return "takes multiples of 8 inputs"
    if problem.input_dtype != ("float32" if problem.parts == 2 else "float16"):
        return "reads float16 in float16, float32 in float16x2"
    return None


def _configure(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    rows = parameters["ROWS"]
    if rows not in (40, 80):
        raise Unfit("multiplies for 40 or 80 images at a time")
    tile = min(tiles(problem.outputs, 64) * 64, MOST_TILE)
    stage = 2 * DEPTH * (problem.weight_parts * tile + problem.parts * (rows + 1)) + 16  # and two barriers
    steps = tiles(problem.inputs, DEPTH)
    stages = min(steps, MOST_STAGES, SHARED // stage)
    groups = tile // 64
    producers = 40 if problem.parts == 1 else 64
    defines: dict[str, str | int] = {
        "INPUTS": problem.inputs,
        "OUTPUTS": problem.outputs,
        "INPUT": problem.input_dtype,
        "OUTPUT": problem.output_dtype,
        "HAS_BIAS": int(problem.bias),
        "ACTIVATION": activation_name(problem.activation),
        "PARTS": problem.parts,
        "WEIGHT_PARTS": problem.weight_parts,
        "LOW_SCALE": LOW_SCALE,
        "TILE": tile,
        "ROWS": rows,
        "STAGES": stages,
        "LAG": min(max(stages - 2, 1), stages - 1),  # a lone stage is waited for
        "PRODUCER_REGISTERS": producers,
        "CONSUMER_REGISTERS": (REGISTERS - producers) // groups // 8 * 8,
        "SHARED_BYTES": stages * stage,
    }
    packed = tiles(problem.outputs, tile) * steps * problem.weight_parts * DEPTH * tile
    takes = (
        Argument("w", "float16", fixed=packed),
        Argument("factors", "float32", fixed=problem.outputs),
        Argument("bias", "float32", fixed=problem.outputs, optional=not problem.bias),
    )
    launch = KernelLaunch(
        2 * tile + PRODUCERS,
        lambda images: (tiles(images, rows), tiles(problem.outputs, tile), 1),
        shared_bytes=stages * stage,
    )
    return LaunchConfig(defines, (launch,), packing=Packing(takes, partial(pack, problem, tile)))


def pack(problem: LinearProblem, tile: int, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """Pack (w, bias) as [core matrices of w, factors, bias]; every output's weights have a power of two of their own.

    w: (tiles of outputs, steps, parts, 8 planes, tile, 8 inputs): wgmma's A from shared memory, with zeros beyond.
    """
    scaled, scales = scaled_outputs(problem, arrays)
    steps, across = tiles(problem.inputs, DEPTH), tiles(problem.outputs, tile)
    padded = np.zeros((steps * DEPTH, across * tile))
    padded[: problem.inputs, : problem.outputs] = scaled
    parts = [
        part.reshape(steps, DEPTH // 8, 8, across, tile).transpose(3, 0, 1, 4, 2)
        for part in parts_of(problem, padded, LOW_SCALE)
    ]
    bias = arrays[1]
    return [
        np.stack(parts, axis=2).reshape(-1),
        (1 / scales).astype(np.float32),
        None if bias is None else bias.astype(np.float32),
    ]


WARPGROUP_ROW = Variant(
    "gemm",
    6,
    "warpgroup",
    "warpgroup tensor-core products of 80 images, fed by warps that run ahead of them",
    "none",
    _configure,
    dtypes=("float16", "float16x2"),
    refuses=_refuses,
    limits="sm_90 alone: its instructions are in no other card; multiples of 8 inputs, no argmax",
    min_arch=90,
    only_arch=90,
    tunables={"ROWS": (40, 80)},
    defaults=lambda _: {"ROWS": 80},
    instructions="wgmma",
)
