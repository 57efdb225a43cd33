"""Choose a second kernel for few images, because the large tiles of the first would occupy few multiprocessors.

Both kernels add the terms of each sum in the same order, so results do not depend on the batch size. A convolution
keeps its kernel and takes smaller tiles. A matrix product takes another kernel.
"""

from math import prod

from app.kernels.problems import ConvProblem, LinearProblem, Problem
from app.kernels.registry import find_variant
from app.kernels.variant import Parameters, Variant, ceil_div
from app.planning.matching import FewImagesKernel

# Estimated from times on an H100: docs/fast-path.md, "Few images in float32 and tfloat32".
# Kernel of a convolution → (outputs that the whole GPU computes with small tiles in the time in which one thread of a
# large tile computes one sum, most images for small tiles).
CONVOLUTIONS = {"register-patch": (4500, 512), "tensor-core": (3000, 256)}
# Kernel of a product for few images → (its rows per warp, warps that together take about half of the time of one large
# tile, most images for this kernel).
PRODUCTS = {"few-rows": (2, 2000, 512), "few-rows-mma": (8, 660, 256)}
# Kernels of products for many images.
LARGE_TILE_PRODUCTS = ("naive", "shared-tiled", "register-tiled", "wide-tiles", "tensor-core")
MOST_CHANNELS = 8  # in shared memory at a time


def kernel_for_few_images(problem: Problem, row: Variant, settings: Parameters, arch: str) -> FewImagesKernel | None:
    """Return the kernel for few images of a layer that ``row`` computes; None if ``row`` suits any number of images.

    settings: parameters of ``row`` that differ from its defaults. arch: such as ``sm_90a``.
    """
    if isinstance(problem, LinearProblem) and row.name in LARGE_TILE_PRODUCTS:
        found = _product_kernel_for_few_images(problem, "few-rows-mma" if row.name == "tensor-core" else "few-rows")
    elif isinstance(problem, ConvProblem) and row.name in CONVOLUTIONS:
        found = _convolution_kernel_for_few_images(problem, row, {**row.defaults(problem), **settings})
    else:
        return None
    return None if found.most < 1 or found.variant.refusal_reason(problem, arch, found.settings) else found


def _product_kernel_for_few_images(problem: LinearProblem, name: str) -> FewImagesKernel:
    row = find_variant("gemm", name)
    assert row is not None
    per_warp, warps, most = PRODUCTS[name]
    (launch,) = row.launch_config(problem).launches
    return FewImagesKernel(row, {}, min(per_warp * warps // launch.grid(1)[1], most))


def _convolution_kernel_for_few_images(problem: ConvProblem, row: Variant, settings: dict[str, int]) -> FewImagesKernel:
    """Return the same kernel with small tiles. tensor-core keeps CK, because CK fixes the order of the terms."""
    at_once, most = CONVOLUTIONS[row.name]
    if row.name == "tensor-core":
        small = {**settings, "MT": 1, "NT": 1, "WARPS_M": 1, "WARPS_N": 4}
        sums = 4 * settings["MT"] * settings["NT"]
        most = most if problem.dtype == "tfloat32" else 0
    else:
        channels = next(ck for ck in range(MOST_CHANNELS, 0, -1) if problem.channels % ck == 0)
        columns = ceil_div(2, problem.pool) * problem.pool
        small = {"TM": 1, "TR": problem.pool, "TC": columns, "GROUPS": 8, "THREADS": 128, "CK": channels}
        sums = settings["TM"] * settings["TR"] * settings["TC"]
    outputs = problem.maps * prod(problem.conv_output_size)
    return FewImagesKernel(row, small, min(at_once * sums // outputs, most))
