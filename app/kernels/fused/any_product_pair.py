"""Define the registry row of the kernel for any two fully connected layers in one launch; pack its weights."""

from dataclasses import replace
from functools import partial

import numpy as np

from app.kernels.fused.gemm_pair import pack_split_class_fragments, split_fragments_size
from app.kernels.gemm.warpgroup import (
    MOST_TILE,
    input_refusal_reason,
    outputs_per_block,
    pack_core_matrices,
    packed_size,
    pipeline_defines,
    slice_count,
    sliced_launches,
    slices_workspace,
    threads_per_block,
)
from app.kernels.plain_problems import Argument
from app.kernels.problems import LinearPairProblem, LinearProblem
from app.kernels.scaling import Arrays, float32_bias, scale_per_output
from app.kernels.variant import (
    ONLY_HOPPER,
    KernelLaunch,
    LaunchConfig,
    Packing,
    Parameters,
    Variant,
    ceil_div,
    wgmma_row,
)

MOST_CLASSES = 64  # because a warp has all scores of its images in registers


def _refusal_reason(problem: LinearPairProblem) -> str | None:
    first, second = problem.first, problem.second
    if first.outputs > MOST_TILE or second.outputs > MOST_CLASSES:
        return f"takes at most {MOST_TILE} hidden values and {MOST_CLASSES} classes"
    if second.activation or not second.argmax:
        return "ends with an argmax, with or without a softmax before it"
    if second.output_dtype != "float32":
        return "stores float32"
    return input_refusal_reason(first)


def _first_problem(problem: LinearPairProblem) -> LinearProblem:
    return replace(problem.first, exact=problem.exact)


def _configure(problem: LinearPairProblem, parameters: Parameters) -> LaunchConfig:
    first, second = _first_problem(problem), problem.second
    rows, hidden = parameters["ROWS"], outputs_per_block(first)
    w2_size = split_fragments_size(hidden, second.outputs)
    pitch = rows + (0 if rows % 16 else 8)
    defines = pipeline_defines(first, rows, fixed=4 * (w2_size + hidden * pitch) + 8) | {
        "HIDDEN": hidden,
        "CLASSES": second.outputs,
        "HAS_BIAS1": int(first.bias),
        "HAS_BIAS2": int(second.bias),
        "SOFTMAX": int(second.softmax),
    }
    takes = (
        Argument("w1", "float16", fixed=packed_size(first)),
        Argument("factors", "float32", fixed=hidden),
        Argument("bias1", "float32", fixed=hidden, optional=not first.bias),
        Argument("w2", "float32", fixed=w2_size),
        Argument("bias2", "float32", fixed=second.outputs, optional=not second.bias),
    )
    launch = KernelLaunch(
        threads_per_block(hidden),
        lambda images: (ceil_div(images, rows), 1, 1),
        shared_bytes=int(defines["SHARED_BYTES"]),
        dependent=True,
    )
    packing, slices = Packing(takes, partial(pack_parameters, problem)), slice_count(first)
    if slices == 1:
        return LaunchConfig(defines, (launch,), packing=packing)
    finish = replace(launch, grid=lambda images: (ceil_div(images, 8), 1, 1))
    actions = sliced_launches(launch, "gemm_pair_wgmma_any", lambda n: (ceil_div(n, rows), slices, 1), finish)
    return LaunchConfig(defines, tuple(actions), slices_workspace(first, hidden), packing=packing)


def pack_parameters(problem: LinearPairProblem, arrays: Arrays) -> list[np.ndarray | None]:
    """Pack (w1, bias1, w2, bias2) as [core matrices of w1, factors, bias1, fragments of w2, bias2].

    Each hidden value's weights are scaled by a power of two, and its factor divides the sums by the same power. Hidden
    values are padded to a multiple of 8 by zero weights. In tfloat32 images are bytes, exact in float16; scaled weights
    have as many bits in float16 as in tfloat32, down to 2**-28 of a hidden value's greatest.
    """
    w1, bias1, w2, bias2 = arrays
    assert w2 is not None
    first = _first_problem(problem)
    scaled, scales = scale_per_output(first, (w1,))
    beyond = outputs_per_block(first) - first.outputs
    second = np.pad(w2.reshape(first.outputs, -1), ((0, beyond), (0, 0)))
    return [
        pack_core_matrices(first, scaled),
        np.pad(1 / scales, (0, beyond)).astype(np.float32),
        None if bias1 is None else np.pad(bias1, (0, beyond)).astype(np.float32),
        pack_split_class_fragments(second),
        float32_bias(bias2),
    ]


ROWS: tuple[Variant, ...] = (
    wgmma_row(
        "gemm_pair",
        0,
        "wgmma_any",
        configure=_configure,
        dtypes=("float16", "float16x2", "tfloat32"),
        summary="any two fully connected layers with all that follows them: warpgroup products, hidden values on chip",
        refuses=_refusal_reason,
        limits=f"{ONLY_HOPPER}; multiples of 8 inputs, 192 hidden values, 64 classes",
        tunables={"ROWS": (40, 80)},
        defaults=lambda _: {"ROWS": 80},
    ),
)
