"""Registry rows of convolutions computed as matrix products: im2col, library, implicit GEMM."""

from collections.abc import Callable
from functools import partial
from math import prod

from app.base.precision import wide
from app.kernels.plain_problems import ITEMSIZE, Argument
from app.kernels.problems import ConvProblem
from app.kernels.variant import (
    BLOCK,
    FLOATS,
    STATIC_SHARED_LIMIT,
    STORED,
    Grid,
    KernelLaunch,
    LaunchConfig,
    LibraryGemm,
    Parameters,
    Unfit,
    Variant,
    conv_sizes,
    ladder_row,
    reordered_weights,
    tiles,
    types,
    workspace_images,
)

# Memory for the unrolled images and the product: a large product keeps the card busy, a small one stays in L2.
_WORKSPACE: dict[str, tuple[int, ...]] = {"MIB": (16, 32, 64, 128, 256, 512)}


def fits_static(size: int) -> None:
    """Raise Unfit for tiles of more bytes than static shared memory has."""
    if size > STATIC_SHARED_LIMIT:
        raise Unfit(f"the tiles take {size:,} bytes of shared memory, at most {STATIC_SHARED_LIMIT:,} are planned for")


def tile_grid(problem: ConvProblem, tile: int, rows: int) -> Callable[[int], Grid]:
    """Return a grid: one block per row of ``rows`` and tile of all images' pixels; rows vary fastest along x."""
    pixels = prod(problem.convolved)
    return lambda images: (tiles(images * pixels, tile) * rows, 1, 1)


def _workspace(problem: ConvProblem) -> tuple[Argument, ...]:
    """unrolled (C * K * K, images * pixels), product (M, images * pixels)."""
    pixels, dtype = prod(problem.convolved), wide(problem.dtype)
    return (
        Argument("unrolled", dtype, per_image=problem.depth * pixels),
        Argument("product", dtype, per_image=problem.maps * pixels),
    )


def _cublas(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    workspace, pixels = _workspace(problem), prod(problem.convolved)
    product = LibraryGemm("w", "unrolled", "product", lambda images: (problem.maps, images * pixels, problem.depth))
    return LaunchConfig(
        types(problem) | conv_sizes(problem),
        (
            KernelLaunch(BLOCK, tile_grid(problem, BLOCK, problem.channels), entry="conv_cublas_im2col"),
            product,
            KernelLaunch(BLOCK, tile_grid(problem, BLOCK, problem.maps)),
        ),
        workspace=workspace,
        images_at_a_time=workspace_images(workspace, parameters["MIB"] << 20),
        # (C, K, K, M) → (M, C * K * K)
        packing=reordered_weights(problem, problem.depth * problem.maps, lambda w: w.reshape(-1, problem.maps).T),
    )


def _im2col_gemm(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    tile, workspace = parameters["TILE"], _workspace(problem)
    fits_static(2 * tile**2 * ITEMSIZE[wide(problem.dtype)])
    return LaunchConfig(
        types(problem) | conv_sizes(problem) | {"TILE": tile},
        (
            KernelLaunch(BLOCK, tile_grid(problem, BLOCK, problem.channels), entry="conv_im2col_gemm_unroll"),
            KernelLaunch(tile**2, tile_grid(problem, tile, tiles(problem.maps, tile))),
            KernelLaunch(BLOCK, tile_grid(problem, BLOCK, problem.maps), entry="conv_im2col_gemm_layout"),
        ),
        workspace=workspace,
        images_at_a_time=workspace_images(workspace, parameters["MIB"] << 20),
    )


def equal_steps(depth: int, most: int) -> int:
    """Return the length of steps that cut a sum into equal parts: the longest of 8 to ``most`` terms."""
    return next((size for size in range(min(depth, most), 7, -1) if depth % size == 0), min(depth, 16))


def _implicit_gemm_defaults(problem: ConvProblem) -> dict[str, int]:
    # The largest BM with the fewest idle threads.
    block_maps = min((32, 24, 16, 12, 8, 4), key=lambda size: tiles(problem.maps, size) * size)
    step = equal_steps(problem.depth, 50)
    return {"BM": block_maps, "BN": 64 if block_maps <= 8 else 32 if block_maps <= 16 else 16, "BK": step}


def _implicit_gemm(problem: ConvProblem, parameters: Parameters) -> LaunchConfig:
    bm, bn, bk = (parameters[name] for name in ("BM", "BN", "BK"))
    fits_static(bk * (bm + bn) * ITEMSIZE[wide(problem.dtype)])
    launch = KernelLaunch(bm * bn, tile_grid(problem, bn, tiles(problem.maps, bm)))
    return LaunchConfig(types(problem) | conv_sizes(problem) | dict(parameters), (launch,))


_row = partial(ladder_row, "conv", automatic=True)
CONV_GEMM_ROWS: tuple[Variant, ...] = (
    ladder_row(
        "conv",
        0,
        "cublas",
        system="none (the yardstick)",
        configure=_cublas,
        dtypes=("float32",),
        limits="the order of summation is cuBLAS's; needs a workspace of MIB",
        tunables=_WORKSPACE,
        defaults=lambda _: {"MIB": 256},
        needs_cublas=True,
    ),
    _row(
        8,
        "im2col_gemm",
        system="lenet5, k7, minidnn86",
        configure=_im2col_gemm,
        since="unrolled",
        dtypes=FLOATS,
        limits="needs a workspace of MIB",
        tunables={"TILE": (8, 16, 32)} | _WORKSPACE,
        defaults=lambda _: {"TILE": 16, "MIB": 256},
    ),
    _row(
        9,
        "implicit_gemm",
        system="fa19, k7",
        configure=_implicit_gemm,
        since="im2col-gemm",
        dtypes=STORED,
        limits="BM x BN at most 1,024",
        tunables={"BM": (4, 8, 12, 16, 24, 32), "BN": (16, 24, 32, 64), "BK": (8, 16, 25, 32, 49)},
        defaults=_implicit_gemm_defaults,
    ),
)
