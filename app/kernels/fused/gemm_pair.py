"""Define the registry rows of the kernels for two products in one launch, with ReLU between and argmax after them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from app.cuda.compiler import architecture_number
from app.kernels.problems import LONG_SUM, LinearPairProblem
from app.kernels.scaling import LOW_SCALE, Arrays, balance_products, float16_parts, float32_bias, split_tf32
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

DEPTH = {"float16": 128, "float16x2": 64}  # wgmma kernel: terms of the first sum per stage
CLASSES = 16  # wgmma kernels: rows of the second product per tile
FEW = 8  # wgmma kernel: up to so many images use a cluster of blocks, or products of fewer columns
HOPPER = 90  # the architecture of wgmma-any
MOST_BLOCKS = 8  # of a cluster: what CUDA calls its portable size
PRODUCT_TUNABLES = {"ROWS": (16, 32, 48, 64, 80, 96, 128), "STAGES": (2, 3, 4)}


def _refusal_reason(problem: LinearPairProblem) -> str | None:
    first, second = problem.first, problem.second
    if first.inputs % 64 or first.outputs % 32 or first.outputs > 256 or second.outputs > 32:
        return "takes multiples of 64 inputs and of 32 hidden values (at most 256), and at most 32 classes"
    if first.activation != "relu" or second.activation or second.softmax or not second.argmax:
        return "serves ReLU between the products and an argmax after them alone"
    if first.input_dtype not in ("float16", "float32") or (first.input_dtype == "float32") != (
        problem.activation_parts == 2
    ):
        return "reads float16 in float16, float32 in float16x2"
    if second.output_dtype != "float32":
        return "stores float32"
    return None


def _configure_launch(
    problem: LinearPairProblem,
    constants: Mapping[str, int],
    launch: KernelLaunch,
    pack: Callable[[LinearPairProblem, Arrays], list[np.ndarray | None]],
    w2_size: int = 0,
) -> LaunchConfig:
    """Return the configuration of one launch. w2_size: elements of the packed second matrix; 0 if it is not packed."""
    first, second = problem.first, problem.second
    defines: dict[str, str | int] = {
        "INPUTS": first.inputs,
        "HIDDEN": first.outputs,
        "CLASSES": second.outputs,
        "INPUT": first.input_dtype,
        "HAS_BIAS1": int(first.bias),
        "HAS_BIAS2": int(second.bias),
        "SPLIT": problem.activation_parts - 1,
        "LOW_SCALE": LOW_SCALE,
        "WEIGHT_PARTS": problem.weight_parts,
        "SOFTMAX": 0,
        **constants,
    }
    _, w1, bias1, w2, bias2, *_ = problem.arguments()
    w1 = replace(w1, dtype="float16", fixed=problem.weight_parts * w1.fixed)
    takes = (w1, bias1, replace(w2, fixed=w2_size or w2.fixed), bias2)
    return LaunchConfig(defines, (launch,), packing=Packing(takes, partial(pack, problem)))


def _configure_products(problem: LinearPairProblem, parameters: Parameters) -> LaunchConfig:
    first, second = problem.first, problem.second
    rows, stages = parameters["ROWS"], parameters["STAGES"]
    if rows % 16:
        raise Unfit("tensor cores take 16 images at a time")
    shared = stages * (
        problem.activation_parts * 16 * 9 * rows + problem.weight_parts * 2 * 64 * first.outputs
    )  # 16 * 9 bytes: 64 float16 of an image and a padding of 8
    epilogue = 4 * (first.outputs * (second.outputs + 1) + 2 * rows * second.outputs)
    if epilogue > shared:
        raise Unfit(f"{rows} images and {stages} stages leave no room for the second product")
    launch = KernelLaunch(4 * rows, lambda n: (ceil_div(n, rows), 1, 1), shared_bytes=shared)
    return _configure_launch(problem, parameters, launch, pack_products)


PRODUCT_WGMMA_TUNABLES = {"ROWS": (40, 80), "STAGES": (2, 3, 4)}


def _wgmma_refusal_reason(problem: LinearPairProblem) -> str | None:
    first, second = problem.first, problem.second
    reason = _refusal_reason(problem)
    if reason is None and (first.inputs % 128 or first.outputs != 128 or second.outputs > CLASSES):
        return f"takes multiples of 128 inputs, 128 hidden values and at most {CLASSES} classes"
    if reason is None and _has_long_sums(problem):
        return f"adds one term after another, fewer than {LONG_SUM:,}: wgmma-any cuts long sums"
    return reason


def _has_long_sums(problem: LinearPairProblem) -> bool:
    """Return whether the first layer's sums are so long that kernel ``wgmma-any`` cuts them into slices."""
    return problem.first.inputs >= LONG_SUM


def _configure_products_wgmma(problem: LinearPairProblem, parameters: Parameters) -> LaunchConfig:
    first = problem.first
    rows, stages = parameters["ROWS"], parameters["STAGES"]
    if rows not in PRODUCT_WGMMA_TUNABLES["ROWS"]:
        raise Unfit("multiplies for 40 or 80 images at a time")
    steps = first.inputs // DEPTH[problem.dtype]
    if stages > steps:
        raise Unfit(f"{first.inputs} inputs do not fill {stages} stages")
    w2_size = split_fragments_size(first.outputs, problem.second.outputs)
    stage = 2 * DEPTH[problem.dtype] * (problem.weight_parts * first.outputs + problem.activation_parts * (rows + 1))
    # In float16x2 the products of low halves are one sum over all k steps, which cannot be split among blocks.
    step_blocks = steps if problem.activation_parts == 1 and steps <= MOST_BLOCKS else 1

    def blocks_per_cluster(images: int) -> int:
        return step_blocks if images <= FEW else 1

    launch = KernelLaunch(
        2 * first.outputs + 128,
        lambda n: (ceil_div(n, rows) * blocks_per_cluster(n), 1, 1),
        shared_bytes=stages * (stage + 16) + 4 * w2_size + 8,
        dependent=True,
        cluster=blocks_per_cluster,
    )
    constants = {**parameters, "FEW": FEW, "STEP_BLOCKS": step_blocks}
    return _configure_launch(problem, constants, launch, pack_for_wgmma, w2_size)


# --- packing: reorder parameters for the tensor cores' instructions, and scale them into float16's range --------------


def pack_products(problem: LinearPairProblem, arrays: Arrays) -> list[np.ndarray | None]:
    """Pack (w1, bias1, w2, bias2): w1 as float16 fragments, with low halves if split; the others as float32."""
    w1, bias1, w2 = balance_products(problem, arrays)
    parts = np.stack(float16_parts(problem, w1, LOW_SCALE))
    # axes: part, step of 64, k of 16, half of 8, t, pair | 16 columns, left and right of 8, g
    words = parts.reshape(len(parts), -1, 4, 2, 4, 2, problem.first.outputs // 16, 2, 8)
    fragments = np.ascontiguousarray(words.transpose(1, 0, 2, 6, 8, 4, 7, 3, 5))
    return [fragments.reshape(-1), float32_bias(bias1), w2.reshape(-1).astype(np.float32), float32_bias(arrays[3])]


def pack_for_wgmma(problem: LinearPairProblem, arrays: Arrays) -> list[np.ndarray | None]:
    """Pack (w1, bias1, w2, bias2): w1 as float16 core matrices, w2 as float32 fragments; biases keep their layout.

    w2 is always split into high and low parts, w1 only in float16x2.
    """
    w1, bias1, w2 = balance_products(problem, arrays)
    parts = [pack_core_matrices(part, DEPTH[problem.dtype]) for part in float16_parts(problem, w1, LOW_SCALE)]
    packed_w1, packed_w2 = np.stack(parts, axis=1).reshape(-1), pack_split_class_fragments(w2)
    return [packed_w1, float32_bias(bias1), packed_w2, float32_bias(arrays[3])]


def pack_core_matrices(weights: np.ndarray, depth: int) -> np.ndarray:
    """Pack (inputs, hidden) as wgmma's A in shared memory: (inputs / depth, depth / 8, hidden, 8 inputs)."""
    inputs, hidden = weights.shape
    planes = weights.reshape(inputs // depth, depth // 8, 8, hidden)
    return np.ascontiguousarray(planes.transpose(0, 1, 3, 2))


def pack_split_class_fragments(weights: np.ndarray) -> np.ndarray:
    """Pack (hidden, classes) as a flat array: high parts as ``pack_class_fragments``, then low parts."""
    return np.stack([pack_class_fragments(part) for part in split_tf32(weights.astype(np.float32))]).reshape(-1)


def split_fragments_size(hidden: int, classes: int) -> int:
    """Return the number of elements that ``pack_split_class_fragments`` returns."""
    return 2 * hidden * ceil_div(classes, CLASSES) * CLASSES


def pack_class_fragments(weights: np.ndarray) -> np.ndarray:
    """Pack (hidden, classes) as mma_tf32's A: (tiles, hidden / 8, 32 lanes, 4 registers), zero-padded.

    Lane 4 g + t has classes g and g + 8 of a tile of 16 for hidden value t, then the same for t + 4.
    """
    hidden, classes = weights.shape
    across = ceil_div(classes, CLASSES)
    padded = np.zeros((hidden, across * CLASSES), np.float32)
    padded[:, :classes] = weights
    parts = padded.reshape(hidden // 8, 2, 4, across, 2, 8)  # axes: step, half of k, t, tile, half of the classes, g
    return np.ascontiguousarray(parts.transpose(3, 0, 5, 2, 1, 4)).reshape(across, hidden // 8, 32, 4)


ROWS: tuple[Variant, ...] = (
    mma_row(
        "gemm_pair",
        1,
        "mma",
        configure=_configure_products,
        dtypes=("float16", "float16x2"),
        summary="two products, ReLU between and argmax after them: the first on tensor cores, the second in registers",
        refuses=_refusal_reason,
        limits="sizes that fit whole tiles, no activation but ReLU",
        tunables=PRODUCT_TUNABLES,
        worthwhile=lambda problem, arch: not (_has_long_sums(problem) and architecture_number(arch) == HOPPER),
        # float16x2: 48 rows fit cards with 99 KB of shared memory per block.
        defaults=lambda problem: {"ROWS": 48 if problem.activation_parts == 2 else 80, "STAGES": 2},
    ),
    wgmma_row(
        "gemm_pair",
        2,
        "wgmma",
        configure=_configure_products_wgmma,
        dtypes=("float16", "float16x2"),
        since="mma",
        summary="step 1 by warpgroup tensor-core products, fed by warps of their own; the second product on them, too",
        refuses=_wgmma_refusal_reason,
        limits=f"{ONLY_HOPPER}; 128 hidden values, no activation but ReLU",
        tunables=PRODUCT_WGMMA_TUNABLES,
        defaults=lambda _: {"ROWS": 80, "STAGES": 4},
    ),
)
