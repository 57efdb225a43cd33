"""Choose further kernels of single layers for few images: the usual large tiles would occupy few multiprocessors.

All kernels of a layer add the terms of each sum in the same order, so results do not depend on the batch size. A
convolution keeps its kernel and takes smaller tiles, in float32 of two sizes. A matrix product takes another kernel.
For some more images, a product in tfloat32 with long sums uses one block for each part of a sum.
"""

from collections.abc import Iterator
from itertools import accumulate
from math import prod

from app.kernels.gemm.gemm import MOST_IMAGES
from app.kernels.problems import LONG_SUM, ConvProblem, LinearProblem, Problem
from app.kernels.registry import find_variant
from app.kernels.variant import Parameters, Variant, ceil_div
from app.planning.matching import FewImagesKernel

# Estimated from times on an H100: docs/fast-path.md, "Few images in float32 and tfloat32".
# Kernel of a convolution → for each smaller tile: (outputs that the whole GPU computes with it in the time in which one
# thread of a large tile computes one sum, most images for it).
CONVOLUTIONS = {"register-patch": ((4500, 512), (19_200, 512)), "tensor-core": ((3000, 256),)}
# Kernel of a product for few images → (rows per warp, number of warps that together take about half the time of one
# large tile).
PRODUCTS = {"few-rows": (2, 2000), "few-rows-mma": (8, 1000)}
# Most images for these kernels. Alone, they are faster for twice as many. But the shortest chunks of 10,000 images have
# 1,000 images and run beside others, to which large tiles leave more of the GPU.
MOST_ROWS = 960
# Kernels of products for many images.
LARGE_TILE_PRODUCTS = ("naive", "shared-tiled", "register-tiled", "wide-tiles", "tensor-core")
PART = 512  # terms of a part of a long sum
# Kernels that add long sums in parts → the types in which they do.
PARTED = {"register-tiled": ("float32",), "wide-tiles": ("float32",), "tensor-core": ("tfloat32",)}
MOST_CHANNELS = 8  # in shared memory at a time


def kernels_for_few_images(
    problem: Problem, row: Variant, settings: Parameters, arch: str
) -> tuple[FewImagesKernel, ...]:
    """Return the kernels that replace ``row`` for few images of a layer, those for the fewest first; () if none do.

    settings: parameters of ``row`` that differ from its defaults. arch: such as ``sm_90a``.
    """
    if isinstance(problem, LinearProblem) and row.name in LARGE_TILE_PRODUCTS:
        found = [*_product_kernels_for_few_images(problem, row, settings)]
    elif isinstance(problem, ConvProblem) and row.name in CONVOLUTIONS:
        found = [*_convolution_kernels_for_few_images(problem, row, {**row.defaults(problem), **settings})]
    else:
        return ()
    served = [one for one in found if one.variant.refusal_reason(problem, arch, one.settings) is None]
    ends = [0, *accumulate((one.most for one in served), max)]
    return tuple(one for one, end in zip(served, ends, strict=False) if one.most > end)


def long_sum_settings(problem: Problem, row: Variant) -> dict[str, int]:
    """Return {"PART": n} for a product whose kernel ``row`` adds long sums in parts of n terms; {} for other layers."""
    in_parts = isinstance(problem, LinearProblem) and row.name in PARTED and problem.dtype in PARTED[row.name]
    long = isinstance(problem, LinearProblem) and problem.inputs >= LONG_SUM and not problem.argmax
    return {"PART": PART} if in_parts and long else {}


def _product_kernels_for_few_images(
    problem: LinearProblem, row: Variant, settings: Parameters
) -> Iterator[FewImagesKernel]:
    """Yield a kernel of one warp per block; for long sums on tensor cores, also large tiles with a block per part."""
    spread = row.name == "tensor-core" and "PART" in settings
    name = "few-rows-mma" if row.name == "tensor-core" else "few-rows"
    warp_kernel = find_variant("gemm", name)
    assert warp_kernel is not None
    part = {name: value for name, value in settings.items() if name == "PART"}
    _, down, parts = warp_kernel.launch_config(problem, part).launches[0].grid(1)
    per_warp, warps = PRODUCTS[name]
    yield FewImagesKernel(warp_kernel, part, min(per_warp * warps // (down * parts if spread else down), MOST_ROWS))
    if spread:
        yield FewImagesKernel(row, {**settings, "SPREAD": 1}, MOST_IMAGES)


def _convolution_kernels_for_few_images(
    problem: ConvProblem, row: Variant, settings: dict[str, int]
) -> Iterator[FewImagesKernel]:
    """Yield ``row`` with small tiles, then larger ones. ``tensor-core`` keeps CK, which fixes the terms' order."""
    if row.name == "tensor-core":
        tiles = [{**settings, "MT": 1, "NT": 1, "WARPS_M": 1, "WARPS_N": 4}] if problem.dtype == "tfloat32" else []
        sums = 4 * settings["MT"] * settings["NT"]
    else:
        channels = next(ck for ck in range(MOST_CHANNELS, 0, -1) if problem.channels % ck == 0)
        shared = {"TR": problem.pool, "GROUPS": 8, "THREADS": 128, "CK": channels}
        # Maps per thread → least number of pixels per map, which is rounded up to whole pooling windows.
        pixels = {1: 2, 4: ceil_div(4, problem.pool)}
        tiles = [
            {"TM": maps, "TC": ceil_div(count, problem.pool) * problem.pool, **shared} for maps, count in pixels.items()
        ]
        sums = settings["TM"] * settings["TR"] * settings["TC"]
    outputs = problem.maps * prod(problem.conv_output_size)
    for tile, (at_once, most) in zip(tiles, CONVOLUTIONS[row.name], strict=False):
        yield FewImagesKernel(row, tile, min(at_once * sums // outputs, most))
