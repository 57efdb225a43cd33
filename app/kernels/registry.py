"""The one list of kernels: a row per variant says what it serves and how it is compiled and launched.

Choosing, listing, testing and measuring variants all read ``VARIANTS``. A variant's file, entry point and
name follow from one another: ``conv_02_direct.cu`` holds ``conv_direct``, chosen by ``--conv direct``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from app.errors import UserError
from app.kernels.compiler import architecture_number
from app.kernels.problems import ArgmaxProblem, ConvProblem, LinearProblem, PoolProblem, Problem, ReluProblem

BLOCK = 256  # threads a block in kernels that give each thread one output element
MAX_GRID_Y = 65_535


@dataclass(frozen=True)
class LaunchConfig:
    """How a variant serves one problem: compile-time constants, block size, grid and trailing int arguments."""

    defines: dict[str, str | int]
    threads: int
    grid: Callable[[int], tuple[int, int]]  # images → (grid.x, grid.y)
    scalars: tuple[int, ...] = ()


@dataclass(frozen=True)
class Variant:
    """One kernel. ``refuses`` says why it cannot serve a problem, or returns None; ``configure`` serves it."""

    operation: str
    step: int
    technique: str
    summary: str
    dtypes: tuple[str, ...]
    refuses: Callable[[Any], str | None]
    configure: Callable[[Any], LaunchConfig]
    min_arch: int = 75

    @property
    def name(self) -> str:
        """The name used on the command line."""
        return self.technique.replace("_", "-")

    @property
    def source(self) -> str:
        """The file in app/kernels/."""
        return f"{self.operation}_{self.step:02}_{self.technique}.cu"

    @property
    def entry(self) -> str:
        """The kernel's function name in that file."""
        return f"{self.operation}_{self.technique}"

    def refusal(self, problem: Problem, arch: str) -> str | None:
        """Why this variant cannot serve the problem on that architecture; None if it can."""
        if architecture_number(arch) < self.min_arch:
            return f"needs sm_{self.min_arch} or later"
        if problem.dtype not in self.dtypes:
            return f"computes in {' or '.join(self.dtypes)}, not {problem.dtype}"
        return self.refuses(problem)


def tiles(size: int, tile: int) -> int:
    """How many tiles cover ``size`` elements."""
    return -(-size // tile)


def _one_thread_each(outputs: int) -> Callable[[int], tuple[int, int]]:
    return lambda images: (tiles(images * outputs, BLOCK), 1)


def _serves_all(_: Problem) -> None:
    return None


def _defines(problem: ConvProblem | LinearProblem, **constants: str | int) -> dict[str, str | int]:
    """Compile-time constants: those of the epilogue, and the kernel's own."""
    return {"INPUT": problem.input_dtype, "HAS_BIAS": int(problem.bias), "HAS_RELU": int(problem.relu), **constants}


def _conv_direct_refuses(problem: ConvProblem) -> str | None:
    if problem.pool > 1:
        return "does not pool"
    return f"takes at most {MAX_GRID_Y} maps" if problem.maps > MAX_GRID_Y else None


def _conv_direct(problem: ConvProblem) -> LaunchConfig:
    pixels = prod(problem.convolved)
    return LaunchConfig(
        defines=_defines(problem, REAL=problem.dtype),
        threads=BLOCK,
        grid=lambda images: (tiles(images * pixels, BLOCK), problem.maps),
        scalars=problem.sizes,
    )


def _conv_implicit_gemm_refuses(problem: ConvProblem) -> str | None:
    if problem.pool not in (1, 2):
        return "fuses pooling windows of 2 x 2 only"
    # Tap offsets lie in constant memory: 64 KB of four bytes each.
    return "sums at most 16,384 products" if problem.channels * problem.kernel**2 > 16_384 else None


def _conv_implicit_gemm(problem: ConvProblem) -> LaunchConfig:
    block_maps = next((size for size in (16, 32) if problem.maps <= size), 64)
    block_pixels = 8192 // block_maps  # 128 threads of 8 x 8 outputs
    depth = problem.channels * problem.kernel**2
    # A short sum is cut into equal steps without padding where its length allows.
    step = next((size for size in (8, 7, 5, 6, 9) if depth % size == 0), 8)
    pixels = prod(problem.pooled) * problem.pool**2
    sizes = _defines(
        problem,
        **dict(zip("CHWMKS", problem.sizes, strict=True)),
        POOL=problem.pool,
        POOL_IS_MAX=int(problem.pool_is_max),
    )
    return LaunchConfig(
        defines=sizes | {"BM": block_maps, "BN": block_pixels, "BK": step, "TM": 8, "TN": 8},
        threads=128,
        grid=lambda images: (tiles(images * pixels, block_pixels), tiles(problem.maps, block_maps)),
    )


def _gemm_naive_refuses(problem: LinearProblem) -> str | None:
    return "does not take the argmax" if problem.argmax else None


def _gemm_naive(problem: LinearProblem) -> LaunchConfig:
    return LaunchConfig(
        defines=_defines(problem, REAL=problem.dtype),
        threads=BLOCK,
        grid=_one_thread_each(problem.outputs),
        scalars=(problem.inputs, problem.outputs),
    )


def _gemm_register_tiled_refuses(problem: LinearProblem) -> str | None:
    return "fuses argmax over at most 32 classes" if problem.argmax and problem.outputs > 32 else None


def _gemm_register_tiled(problem: LinearProblem) -> LaunchConfig:
    sizes = _defines(problem, DEPTH=problem.inputs, N=problem.outputs, ARGMAX=int(problem.argmax))
    block_rows, block_columns = (64, 16) if problem.outputs <= 16 else (32, 32)
    return LaunchConfig(
        defines=sizes | {"BM": block_rows, "BN": block_columns, "BK": 16, "TM": 4, "TN": 4},
        threads=block_rows * block_columns // 16,
        grid=lambda images: (tiles(images, block_rows), tiles(problem.outputs, block_columns)),
    )


def _pool_direct(problem: PoolProblem) -> LaunchConfig:
    window = {"WINDOW": problem.window, "STRIDE": problem.stride, "IS_MAX": int(problem.is_max)}
    maps = {"CHANNELS": problem.channels, "H": problem.height, "W": problem.width}
    outputs = problem.channels * prod(problem.pooled)
    return LaunchConfig({"REAL": problem.dtype, **maps, **window}, BLOCK, _one_thread_each(outputs))


def _relu_elementwise(problem: ReluProblem) -> LaunchConfig:
    return LaunchConfig({"REAL": problem.dtype, "SIZE": problem.size}, BLOCK, _one_thread_each(problem.size))


def _argmax_rows(problem: ArgmaxProblem) -> LaunchConfig:
    return LaunchConfig({"REAL": problem.dtype, "N": problem.classes}, BLOCK, _one_thread_each(1))


def _argmax_refuses(problem: ArgmaxProblem) -> str | None:
    return "a label is one byte: at most 256 classes" if problem.classes > 256 else None


FLOATS = ("float32", "float64")
VARIANTS: tuple[Variant, ...] = (
    Variant("conv", 2, "direct", "one thread per output element", FLOATS, _conv_direct_refuses, _conv_direct),
    Variant(
        *("conv", 10, "implicit_gemm", "register-tiled implicit GEMM, double-buffered, pooling in registers"),
        *(("float32",), _conv_implicit_gemm_refuses, _conv_implicit_gemm),
    ),
    Variant("gemm", 1, "naive", "one thread per output element", FLOATS, _gemm_naive_refuses, _gemm_naive),
    Variant(
        *("gemm", 3, "register_tiled", "register tiles from double-buffered shared memory, argmax by shuffles"),
        *(("float32",), _gemm_register_tiled_refuses, _gemm_register_tiled),
    ),
    Variant("pool", 1, "direct", "one thread per output element", FLOATS, _serves_all, _pool_direct),
    Variant("relu", 1, "elementwise", "one thread per element", FLOATS, _serves_all, _relu_elementwise),
    Variant("argmax", 1, "rows", "one thread per row", FLOATS, _argmax_refuses, _argmax_rows),
)


def variants(operation: str) -> list[Variant]:
    """The rows of one operation, in the order of their steps."""
    return sorted((row for row in VARIANTS if row.operation == operation), key=lambda row: row.step)


def check_name(operation: str, requested: str) -> None:
    """Raises UserError unless ``requested`` is ``auto`` or names a variant of the operation."""
    known = ["auto", *(row.name for row in variants(operation))]
    if requested not in known:
        raise UserError(f"unknown {operation} kernel '{requested}': choose one of {', '.join(known)}")


def choose(operation: str, problem: Problem, arch: str, requested: str = "auto") -> Variant | None:
    """The variant to use, or None if none (or not the requested one) serves the problem.

    ``auto`` takes the highest step that serves the problem. Raises UserError for an unknown name.
    """
    check_name(operation, requested)
    rows = [row for row in variants(operation) if requested in ("auto", row.name)]
    return next((row for row in reversed(rows) if row.refusal(problem, arch) is None), None)
