"""Registry rows of the kernels that compute two convolutions at once, with ReLU and pooling after each."""

from __future__ import annotations

from app.kernels.fused.mma_packing import pack_for_mma
from app.kernels.fused.packing import pack_convolutions
from app.kernels.problems import Argument, ConvPairProblem
from app.kernels.variant import KernelLaunch, LaunchConfig, Packing, Parameters, Variant, tiles
from app.precision import storage

# lenet5's convolutions: C, H, W, M, K, S.
SIZES = ((1, 28, 28, 32, 5, 1), (32, 12, 12, 64, 5, 1))
HOPPER = "sm_90 alone: its instructions are in no other card; lenet5's two convolutions without bias, from bytes"
# Bytes of shared memory, as in conv_pair.cuh.
POOLED_IMAGE, WINDOWS, FILTER_STEP = 9216, 2880, 2048


def _refuses_convolutions(problem: ConvPairProblem) -> str | None:
    first, second = problem.first, problem.second
    if (first.sizes, second.sizes) != SIZES or first.input_dtype != "uint8":
        return "serves lenet5's convolutions of bytes alone"
    if any((part.activation, part.pool, part.pool_is_max) != ("relu", 2, False) for part in (first, second)):
        return "serves ReLU and 2 x 2 average pooling alone"
    return None


def _refuses_wgmma(problem: ConvPairProblem) -> str | None:
    reason = _refuses_convolutions(problem)
    if reason is None and (problem.first.bias or problem.second.bias):
        return "adds no bias"
    if reason is None and problem.second.output_dtype != storage(problem.dtype):
        return f"stores {storage(problem.dtype)}"
    return reason


def _taken(problem: ConvPairProblem) -> tuple[Argument, ...]:
    """Describe the wgmma kernels' packed parameters: filters1, filters2, scales."""
    parts = 2 if problem.dtype == "float16x2" else 1
    filters2 = problem.second.depth * problem.second.maps
    return (
        Argument("filters1", "float16", fixed=parts * 2 * 3 * 128 * 8),
        Argument("filters2", "float16", fixed=parts * filters2),
        Argument("scales", "float32", fixed=2),
    )


def _walking(problem: ConvPairProblem, images: int, shared: int) -> LaunchConfig:
    """Configure a block of three warpgroups, each of which takes ``images`` images at a time."""
    return LaunchConfig(
        {"SHARED_BYTES": shared},
        (KernelLaunch(384, lambda n: (tiles(n, images), 1, 1), shared_bytes=shared, persistent=True),),
        packing=Packing(_taken(problem), lambda arrays: pack_convolutions(problem, arrays)),
    )


def _wgmma(problem: ConvPairProblem, _: Parameters) -> LaunchConfig:
    return _walking(problem, 4, 50 * FILTER_STEP + 3 * (4 * POOLED_IMAGE + 2 * WINDOWS) + 8)


def _wgmma_split(problem: ConvPairProblem, _: Parameters) -> LaunchConfig:
    stages = 12
    return _walking(problem, 2, stages * (4 * FILTER_STEP + 16) + 3 * (4 * POOLED_IMAGE + 2 * WINDOWS))


def _mma(problem: ConvPairProblem, _: Parameters) -> LaunchConfig:
    first, second = problem.first, problem.second
    warps = 4  # of an image each, one for each scheduler of a multiprocessor
    parts = 2 if problem.dtype == "float16x2" else 1
    shared = warps * (parts * POOLED_IMAGE + 28 * 20 * 4)
    defines: dict[str, str | int] = {
        "OUTPUT": second.output_dtype,
        "HAS_BIAS1": int(first.bias),
        "HAS_BIAS2": int(second.bias),
        "SPLIT": parts - 1,
        "WARPS": warps,
        "SHARED_BYTES": shared,
    }
    arguments = problem.arguments()
    takes = (
        Argument("filters1", "float16", fixed=parts * 32 * first.maps),
        arguments[2],
        Argument("filters2", "float16", fixed=parts * second.depth * second.maps),
        arguments[4],
        Argument("scales", "float32", fixed=2),
    )
    return LaunchConfig(
        defines,
        (KernelLaunch(32 * warps, lambda n: (tiles(n, warps), 1, 1), shared_bytes=shared),),
        packing=Packing(takes, lambda arrays: pack_for_mma(problem, arrays)),
    )


CONV_PAIR_ROWS: tuple[Variant, ...] = (
    Variant(
        "conv_pair",
        1,
        "mma",
        summary="both convolutions with ReLU and pooling on chip, one image a warp: tensor-core products by mma",
        system="none of them",
        dtypes=("float16", "float16x2"),
        refuses=_refuses_convolutions,
        configure=_mma,
        limits="lenet5's two convolutions of bytes",
        min_arch=80,
        pools=True,
        automatic=True,
        instructions="mma",
    ),
    Variant(
        "conv_pair",
        2,
        "wgmma",
        summary="both convolutions with ReLU and pooling on chip: warpgroup tensor-core products, float16",
        system="none of them",
        dtypes=("float16",),
        refuses=_refuses_wgmma,
        configure=_wgmma,
        limits=HOPPER,
        min_arch=90,
        only_arch=90,
        pools=True,
        reads_host=True,
        automatic=True,
        instructions="wgmma",
    ),
    Variant(
        "conv_pair",
        3,
        "wgmma_split",
        summary="step 2 with each operand the sum of two float16: as exact as float32",
        system="none of them",
        dtypes=("float16x2",),
        refuses=_refuses_wgmma,
        configure=_wgmma_split,
        limits=HOPPER,
        min_arch=90,
        only_arch=90,
        pools=True,
        reads_host=True,
        automatic=True,
        instructions="wgmma",
    ),
)
