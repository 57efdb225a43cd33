"""Test that errors planted in emulated kernels are found, as a wrong element or as a fault of the emulation."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from app.kernels.problems import ConvPairProblem, ConvProblem, LinearProblem, Problem
from app.kernels.variant import Variant
from app.lab.checking.cases import Fault
from app.ladder.emulation.program import build_variant
from tests.support.host_kernels import skip_without_compiler
from tests.support.kernel_device import host_arrays
from tests.support.kernel_grid import convolution_pair, product_pair, row_of, sparsely, typed
from tests.support.kernel_oracle import check, expected

# Planted errors: file, text in it, its replacement, and the pattern of the message about a wrong element or a fault.
WRONG = r"element \d+ of \d+ is "
PROBLEMS: dict[str, Problem] = {
    "conv": ConvProblem(12, 10, 10, 64, 5, padding=1, sparse=True),
    "conv_pair": convolution_pair(),
    "gemm": LinearProblem(1296, 32, bias=True, activation="relu"),  # more steps than stages
    "gemm_pair": product_pair(1024, 128, 10),
}
CONVOLUTIONS = [
    ("conv_pair_warpgroups.cuh", "WINDOW_ROW_BYTES, 128)", "WINDOW_ROW_BYTES, 144)", WRONG),
    ("conv_pair_float16.cuh", "wgmma_wait_group(sums);", "", "waits for products without naming their sums"),
    ("conv_pair_warpgroups.cuh", "&smem.filters_full, 1)", "&smem.filters_full, 2)", "never ends"),
]
SPARSE = [
    ("conv_pair_07_wgmma_sparse.cu", "wgmma_f16_sparse<1>", "wgmma_f16_sparse<0>", WRONG),
    ("sparse_products.cuh", "+ next % 4 * 4", "", WRONG),
]
SPARSE_INT8 = [
    ("conv_pair_09_wgmma_sparse_int8.cu", "16 - PLANE", "32 - PLANE", WRONG),
    ("conv_pair_09_wgmma_sparse_int8.cu", "sparse<0>", "sparse<1>", "multiplies bytes by a selector that is not 0"),
]
SPARSE_OF_ANY_SIZES = [
    ("warpgroup_convolution.cuh", "place * STAGE_BYTES", "0", WRONG),
    ("warpgroup_bands.cuh", "SPARSE && i <", "false && i <", WRONG),  # memory below a band holds NaN
]
PRODUCTS = [
    ("warpgroup_product.cuh", "advance_desc(x, k * X_PLANE_BYTES), false", "advance_desc(x, 0), false", WRONG),
    ("warpgroup_pipeline.cuh", "fence_proxy_async();", "", WRONG),
    ("warpgroup_product.cuh", "mbarrier_wait(full() + at.pipe.stage, at.pipe.phase);", "", "more often than it counts"),
    ("wgmma.cuh", "(next_rows >> 4) << 32", "(next_rows >> 4) << 36", "beyond the block's shared memory"),
]
CLUSTERS = [
    ("gemm_pair_02_wgmma.cu", " & WITHIN_BLOCK;", ";", WRONG),
    ("gemm_pair_02_wgmma.cu", "parts + step * CONSUMERS", "parts", WRONG),
]
PLANTED = [
    *((row_of("conv_pair", "wgmma"), 3, *planted) for planted in CONVOLUTIONS),
    *((row_of("conv_pair", "wgmma-sparse"), 3, *planted) for planted in SPARSE),
    *((row_of("conv_pair", "wgmma-sparse-int8"), 3, *planted) for planted in SPARSE_INT8),
    *((row_of("conv", "warpgroup-sparse"), 3, *planted) for planted in SPARSE_OF_ANY_SIZES),
    *((row_of("gemm", "warpgroup"), 83, *planted) for planted in PRODUCTS),
    *((row_of("gemm_pair", "wgmma"), 5, *planted) for planted in CLUSTERS),
]


def check_row(row: Variant, images: int, folder: Path) -> None:
    """Compare the emulated row, in its first type, with the reference. Raises Fault, or AssertionError if wrong."""
    wanted = PROBLEMS[row.operation]
    problem = typed(sparsely(wanted) if row.sparse and isinstance(wanted, ConvPairProblem) else wanted, row.dtypes[0])
    x, arrays = host_arrays(problem, images)
    packing = row.launch_config(problem).packing
    assert packing is not None
    y, *_ = build_variant(row, problem, {}, images, folder).run([x, *packing.pack(arrays)], low=False)
    check(y, problem, expected(problem, images, row))


@pytest.mark.parametrize(("row", "images", "name", "old", "new", "message"), PLANTED)
def test_a_planted_error_is_found(
    row: Variant, images: int, name: str, old: str, new: str, message: str, tmp_path: Path
) -> None:
    skip_without_compiler()
    headers = [row.path.parent, row.path.parents[1] / "include"]
    sources = {path.name: path for folder in reversed(headers) for path in folder.glob("*.cu*")}
    (tmp_path / row.source).write_bytes(sources[row.source].read_bytes())
    text = sources[name].read_text(encoding="utf-8")
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    for header in row.path.parent.glob("*.cuh"):
        if header.name != name:
            (tmp_path / header.name).write_bytes(header.read_bytes())
    with pytest.raises((AssertionError, Fault)) as found:
        check_row(replace(row, folder=tmp_path, dtypes=row.dtypes[:1]), images, tmp_path / "built")
    assert re.search(message, str(found.value)), found.value
