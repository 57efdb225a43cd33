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
# Kernel of a product for few images → (its rows per warp, warps that together take at most some half of the time of one
# large tile).
PRODUCTS = {"few-rows": (2, 2000), "few-rows-mma": (8, 1000)}
# Most images for these kernels. Alone, they are faster for twice as many. But the shortest chunks of 10,000 images have
# 1,000 images and run beside others, where large tiles leave them more of the GPU.
MOST_ROWS = 960
# Kernels of products for many images.
LARGE_TILE_PRODUCTS = ("naive", "shared-tiled", "register-tiled", "wide-tiles", "tensor-core")
# Terms of a long sum and of its parts. One warp takes 4.4 ns for a term, so it would sum 4,096 of them in 18 us.
LONG_SUM, PART = 4096, 512
# Those of the kernels that cut sums into parts, and their types.
PARTED = {"register-tiled": ("float32",), "wide-tiles": ("float32",), "tensor-core": ("tfloat32",)}
MOST_CHANNELS = 8  # in shared memory at a time


def kernel_for_few_images(problem: Problem, row: Variant, settings: Parameters, arch: str) -> FewImagesKernel | None:
    """Return the kernel for few images of a layer that ``row`` computes; None if ``row`` suits any number of images.

    settings: parameters of ``row`` that differ from its defaults. arch: such as ``sm_90a``.
    """
    if isinstance(problem, LinearProblem) and row.name in LARGE_TILE_PRODUCTS:
        name = "few-rows-mma" if row.name == "tensor-core" else "few-rows"
        found = _product_kernel_for_few_images(problem, name, settings)
    elif isinstance(problem, ConvProblem) and row.name in CONVOLUTIONS:
        found = _convolution_kernel_for_few_images(problem, row, {**row.defaults(problem), **settings})
    else:
        return None
    return None if found.most < 1 or found.variant.refusal_reason(problem, arch, found.settings) else found


def part_settings(problem: Problem, row: Variant) -> dict[str, int]:
    """Return the parameter of both kernels of a product with long sums that cuts the sums into parts; else nothing."""
    in_parts = isinstance(problem, LinearProblem) and row.name in PARTED and problem.dtype in PARTED[row.name]
    long = isinstance(problem, LinearProblem) and problem.inputs >= LONG_SUM and not problem.argmax
    return {"PART": PART} if in_parts and long else {}


def _product_kernel_for_few_images(problem: LinearProblem, name: str, settings: Parameters) -> FewImagesKernel:
    row = find_variant("gemm", name)
    assert row is not None
    per_warp, warps = PRODUCTS[name]
    (launch,) = row.launch_config(problem).launches
    part = {name: value for name, value in settings.items() if name == "PART"}
    return FewImagesKernel(row, part, min(per_warp * warps // launch.grid(1)[1], MOST_ROWS))


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
