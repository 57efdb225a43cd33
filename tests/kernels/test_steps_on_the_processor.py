"""Steps of the ladder run by the processor: every element against the NumPy reference, off every tile's edge.

An access beyond the end of an input is a crash; a word that nothing wrote is NaN.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from app.emulation.library import guarded
from tests.support.host_kernels import HostKernel
from tests.support.kernel_cases import GRID, Case, elements, served, tuned_cases
from tests.support.kernel_device import host_arrays
from tests.support.kernel_grid import row_of
from tests.support.kernel_oracle import check, expected

IMAGES = {"conv": 3, "gemm": 70}  # rows of a product
TILES = ("register-column", "register-square", "wide-loads", "double-buffered")
PATCHES = ("register-row", "register-block", "async-copies")
ROWS = [*(row_of(kind, name) for kind in IMAGES for name in TILES), *(row_of("conv", name) for name in PATCHES)]
SPREAD = 20  # of the cases one in so many, others for each row: the tests on a card have all


def spread(cases: Iterable[Case]) -> list[Case]:
    """Cases in float32 with which the processor is done soon, some for each row."""
    cases = [case for case in cases if case.row in ROWS and case.problem.dtype == "float32"]
    soon = [case for case in cases if IMAGES[case.row.operation] * case.problem.flops <= 1_200_000]
    return [case for at, row in enumerate(ROWS) for case in [case for case in soon if case.row is row][at::SPREAD]]


CASES = [*spread(case for row in ROWS for case in served(row, GRID[row.operation])), *spread(tuned_cases())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled."""
    return tmp_path_factory.getbasetemp() / "steps"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_element(case: Case, folder: Path) -> None:
    problem, images = case.problem, IMAGES[case.row.operation]
    x, arrays = host_arrays(problem, images)
    config = case.row.config(problem, dict(case.parameters))
    (launch,) = config.launches
    given = config.packing.pack(arrays) if config.packing else arrays
    packed = [None if array is None else guarded(array) for array in given]
    y = guarded(np.full(images * elements(problem), np.nan, np.float32))
    kernel = HostKernel(folder, case.row.path, case.row.entry, config.defines, launch.threads, launch.shared_bytes)
    kernel(None, launch.grid(images), guarded(x), *packed, y, np.int32(images))
    check(y, problem, expected(problem, images, case.row))
