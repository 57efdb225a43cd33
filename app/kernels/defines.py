"""Compile-time constants that kernels of one operation share, and the plainest launch."""

from __future__ import annotations

from collections.abc import Callable

from app.kernels.problems import ConvProblem, LinearProblem
from app.kernels.variant import Grid, KernelLaunch, LaunchConfig, tiles
from app.precision import storage, wide

BLOCK = 256  # threads a block in kernels that give each thread one output element
MAX_GRID_Y = 65_535
FLOATS = ("float32", "float64")


def types(problem: ConvProblem | LinearProblem) -> dict[str, str | int]:
    """INPUT, WEIGHT, REAL, OUTPUT and the epilogue's HAS_BIAS and ACTIVATION."""
    return {
        "INPUT": problem.input_dtype,
        "WEIGHT": storage(problem.dtype),
        "REAL": wide(problem.dtype),
        "OUTPUT": problem.output_dtype,
        "HAS_BIAS": int(problem.bias),
        "ACTIVATION": activation_name(problem.activation),
    }


def activation_name(function: str) -> str:
    """The name in ``include/activations.cuh`` of a layer's ``function``; of none if it is empty."""
    return function.upper() or "NONE"


def same_types(dtype: str) -> dict[str, str | int]:
    """INPUT, REAL and OUTPUT of an operation that keeps its type."""
    return {"INPUT": dtype, "REAL": wide(dtype), "OUTPUT": dtype}


def conv_sizes(problem: ConvProblem) -> dict[str, str | int]:
    """C, H, W, M, K, S as compile-time constants."""
    return dict(zip("CHWMKS", problem.sizes, strict=True))


def pooling(problem: ConvProblem) -> dict[str, str | int]:
    """POOL and POOL_IS_MAX of kernels that pool."""
    return {"POOL": problem.pool, "POOL_IS_MAX": int(problem.pool_is_max)}


def one_thread_each(outputs: int) -> Callable[[int], Grid]:
    """The grid that gives each of ``outputs`` elements an image one thread of a block of BLOCK."""
    return lambda images: (tiles(images * outputs, BLOCK), 1, 1)


def elementwise(defines: dict[str, str | int], outputs: int, scalars: tuple[int, ...] = ()) -> LaunchConfig:
    """One launch, one thread for each output element."""
    return LaunchConfig(defines, (KernelLaunch(BLOCK, one_thread_each(outputs), scalars=scalars),))
