"""The kernel of any two convolutions, run by the processor: every element, from shared memory full of NaN."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from app.emulation.library import guarded
from app.kernels.fused.any_pair import ANY_PAIR_ROW
from app.kernels.problems import ConvPairProblem
from tests.support.drawn_pairs import DRAWN_PAIRS
from tests.support.host_kernels import HostKernel
from tests.support.kernel_cases import Case, elements, served
from tests.support.kernel_device import host_arrays
from tests.support.kernel_grid import exactly
from tests.support.kernel_oracle import check, expected

IMAGES = 2
# In each arithmetic a third of them: the tests on a card have all.
FORMS = {"float16": DRAWN_PAIRS[::3], "float16x2": [*DRAWN_PAIRS[1::3], *map(exactly, DRAWN_PAIRS[2::3])]}
CASES = [case for dtype, pairs in FORMS.items() for case in served(ANY_PAIR_ROW, pairs) if case.problem.dtype == dtype]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled."""
    return tmp_path_factory.getbasetemp() / "kernels"


def pair_of(case: Case) -> ConvPairProblem:
    """The case's problem."""
    assert isinstance(case.problem, ConvPairProblem)
    return case.problem


def run(case: Case, x: np.ndarray, arrays: Sequence[np.ndarray | None], folder: Path) -> np.ndarray:
    """The kernel's results, flat."""
    problem, images = pair_of(case), len(x)
    config = case.row.config(problem)
    (launch,), packing = config.launches, config.packing
    assert packing is not None
    packed = [None if array is None else guarded(array) for array in packing.pack(arrays)]
    y = guarded(np.full(images * elements(problem), np.nan, problem.second.output_dtype))
    kernel = HostKernel(folder, case.row.path, case.row.entry, config.defines, launch.threads, launch.shared_bytes)
    kernel(None, launch.grid(images), guarded(x), *packed, y, np.int32(images))
    return y


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_element(case: Case, folder: Path) -> None:
    """An access beyond the end of x or of a parameter is a crash; a word that nothing wrote is NaN."""
    check(run(case, *host_arrays(case.problem, IMAGES), folder), case.problem, expected(case.problem, IMAGES, case.row))


@pytest.mark.parametrize("place", [0, 2], ids=["w1", "w2"])
@pytest.mark.parametrize("case", [case for case in CASES if not pair_of(case).exact][1::4], ids=str)
def test_nan_in_a_weight_shows_in_all_that_depends_on_it(case: Case, place: int, folder: Path) -> None:
    """Of the first convolution: everything. Of the second: one map."""
    x, arrays = host_arrays(case.problem, 1)
    given = arrays[place]
    assert given is not None
    given[..., -1][given.shape[0] // 2] = np.nan
    isnan = np.isnan(run(case, x, arrays, folder).astype(np.float32).reshape(pair_of(case).second.maps, -1))
    assert isnan[-1].all() and isnan[:-1].all() == (place == 0) and isnan[:-1].any() == (place == 0)
