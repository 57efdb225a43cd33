"""Test kernels by emulation on the CPU: every element against the NumPy reference, also of sizes that fill no tile.

An access beyond the end of an input crashes. Memory that nothing wrote holds NaN, shared memory included.
"""

from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from app.kernels.fused import any_pair
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearProblem, PoolProblem, Problem, operation
from app.kernels.registry import variants
from app.ladder.emulation.program import why_not_on_cpu
from app.network.definitions import Network
from tests.support.drawn_pairs import DRAWN_PAIRS, TILED_PAIRS
from tests.support.kernel_cases import GRID, OPERATIONS, STORED, Case, served, small_cases, tuned_cases
from tests.support.kernel_device import check_softmax_and_labels, host_arrays, softmax_cases
from tests.support.kernel_grid import NETWORK_PAIRS, RAGGED, exactly, row_of
from tests.support.kernel_oracle import check, expected, layers_of
from tests.support.on_processor import run_row
from tests.support.oracle import onnx_outputs

IMAGES = {"conv": 3, "gemm": 70, "conv_pair": 2}  # rows of a product
# Many and few images, by operation and instruction. Emulation runs two blocks of three or five warpgroups, which take
# pairs of images: 23 are more than one round and end with a single image; 5 are one for each warpgroup. 83 rows of a
# product are more than one block.
COUNTS = {
    ("conv", "wgmma"): (9, 1),
    ("conv_pair", "mma"): (5, 1),
    ("conv_pair", "wgmma"): (23, 5),
    ("gemm_pair", "mma"): (35, 5),
    ("gemm_pair", "wgmma"): (83, 5),
    ("gemm", "wgmma"): (83, 5),
}
TILES = ("register-column", "register-square", "wide-loads", "register-tiled")
PATCHES = ("register-row", "register-block", "async-copies")
STEPS = [*(row_of(kind, name) for kind in ("conv", "gemm") for name in TILES), *(row_of("conv", n) for n in PATCHES)]
SOON = 1_200_000  # most operations of a sampled case
SPREAD = 80  # one of so many cases is sampled, other ones for each row; the GPU tests have all
WARPGROUP = row_of("gemm", "warpgroup")
ANY_PAIR, ANY_TILED = row_of("conv_pair", "mma-any"), row_of("conv_pair", "wgmma-any")


def is_short(problem: Problem, most: int) -> bool:
    """Return whether emulating the problem takes at most ``most`` floating-point operations."""
    return IMAGES[operation(problem)] * problem.flops <= most


def sample_float32_cases(cases: Iterable[Case]) -> list[Case]:
    """Return some short float32 cases for each row of STEPS."""
    cases = [case for case in cases if case.row in STEPS and case.problem.dtype == "float32"]
    cases = [case for case in cases if is_short(case.problem, SOON)]
    return [case for at, row in enumerate(STEPS) for case in [case for case in cases if case.row is row][at::SPREAD]]


def sample_split_cases() -> list[Case]:
    """Return every twelfth float16x2 case of the tensor-core kernels, which split float32 into two tfloat32."""
    found: list[Case] = []
    for row in (row_of("conv", "tensor-core"), row_of("gemm", "tensor-core")):
        name = row.operation
        grid, stored = ([one for one in some if is_short(one, 6_000_000)] for some in (GRID[name], STORED[name]))
        tuned = [case for case in tuned_cases() if case.row is row and case.problem.dtype == "float16x2"]
        own = [*served(row, grid, "float16x2"), *served(row, stored, "float16x2", store=False)]
        found += [*own, *(case for case in tuned if is_short(case.problem, 6_000_000))][::12]
    return found


def sample_pair_cases() -> list[Case]:
    """Return some random pairs of convolutions, different ones in each arithmetic; the GPU tests have all."""
    forms = {"float16": DRAWN_PAIRS[::7], "float16x2": [*DRAWN_PAIRS[3::11], *map(exactly, DRAWN_PAIRS[9::11])]}
    drawn = [case for dtype, own in forms.items() for case in served(ANY_PAIR, own, dtype)]
    return [*drawn, *served(ANY_TILED, [TILED_PAIRS[4], exactly(TILED_PAIRS[6])])]


def sample_ragged_products() -> list[Case]:
    """Return every fifth product whose size does not fill the warpgroup kernel's tiles, in each of its three forms."""
    light = [LinearProblem(i, o, bias=o % 2 == 0, activation=name) for i, o, name in RAGGED if i * o <= 500_000]
    return [*served(WARPGROUP, [*light, *(replace(problem, exact=True) for problem in light)])][::5]


def sample_small_cases() -> list[Case]:
    """Return half of each dense tensor-core row's small cases, all of rows with up to three, and all in tfloat32."""
    rows = [WARPGROUP, row_of("conv", "warpgroup"), *variants("conv_pair"), *variants("gemm_pair")]
    rows = [row for row in rows if row is not ANY_PAIR and not row.sparse]
    found = [[case for case in small_cases() if case.row is row] for row in rows]
    every = [case for cases in found for case in cases[:: 1 if len(cases) <= 3 else 2]]
    return [*every, *(case for cases in found for case in cases[1::2] if case.problem.dtype == "tfloat32")]


def sample_softmax_cases() -> list[Case]:
    """Return softmax cases of 1, 10 and 17 classes in each kernel's first type, and of 16 in its others."""

    def is_taken(case: Case, problem: Any) -> bool:
        return problem.outputs in ((1, 10, 17) if problem.dtype == case.row.dtypes[0] else (16,))

    return [case for case in softmax_cases() if is_taken(case, case.problem)]


LIGHT = {name: [problem for problem in GRID[name] if is_short(problem, SOON)] for name in ("conv", "gemm")}
ONE_BY_ONE = [
    *sample_float32_cases(case for row in STEPS for case in served(row, LIGHT[row.operation], "float32")),
    *sample_float32_cases(tuned_cases()),
]
PAIRS = sample_pair_cases()
OF_TENSOR_CORES = [*sample_small_cases(), *sample_ragged_products()]


@pytest.mark.grid
@pytest.mark.parametrize("case", [*ONE_BY_ONE, *sample_split_cases(), *PAIRS], ids=str)
def test_every_element(case: Case) -> None:
    images = IMAGES[case.row.operation]
    x, arrays = host_arrays(case.problem, images)
    y, *_ = run_row(case.row, case.problem, x, arrays, dict(case.parameters))
    check(y, case.problem, expected(case.problem, images, case.row))


@pytest.mark.grid
@pytest.mark.parametrize("case", OF_TENSOR_CORES, ids=str)
def test_every_element_and_label(case: Case) -> None:
    """Check a batch that uses all stages and rounds of the kernel, and one of few images."""
    problem: Any = case.problem
    # Warpgroups of this kernel take one image each: four in two blocks, so nine images are more than one round.
    most, few = (9, 2) if case.row is ANY_TILED else COUNTS[case.row.operation, case.row.instructions]
    x, arrays = host_arrays(problem, most)
    wanted = expected(problem, most, case.row)
    for images in (most, few):
        y, *labels = run_row(case.row, problem, x[:images], arrays)
        check(y, problem, wanted)
        if labels:
            best = y.reshape(images, -1).argmax(axis=1)
            np.testing.assert_array_equal(labels[0], best)


# Groups of values end with a row here, so the last step of k reads beyond the rows of a band.
WHOLE_ROWS = ConvPairProblem(ConvProblem(1, 66, 34, 3, 3, input_dtype="uint8"), ConvProblem(3, 64, 32, 5, 2, 2))
OF_NETWORKS = [*served(ANY_PAIR, [*NETWORK_PAIRS[:3], WHOLE_ROWS], "float16")]


@pytest.mark.grid
@pytest.mark.parametrize("case", [*(case for case in PAIRS if case.row is ANY_PAIR), *OF_NETWORKS], ids=str)
def test_bands_of_a_few_images_have_the_bits_of_many(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block for each band of few images gives the bits of a block per image; memory that no block wrote is NaN."""
    x, arrays = host_arrays(case.problem, 1 if case in OF_NETWORKS else 2)
    launches = case.row.launch_config(case.problem).launches
    assert [launch.grid(any_pair.FEW_IMAGES)[1] for launch in launches] == [any_pair.BANDS, 0]
    assert [launch.grid(any_pair.FEW_IMAGES + 1)[1] for launch in launches] == [0, 1]
    (few,) = run_row(case.row, case.problem, x, arrays)
    monkeypatch.setattr(any_pair, "FEW_IMAGES", 0)
    (many,) = run_row(case.row, case.problem, x, arrays)
    np.testing.assert_array_equal(few.view(np.uint8), many.view(np.uint8))


@pytest.mark.grid
@pytest.mark.parametrize("case", sample_softmax_cases(), ids=str)
def test_a_fused_softmax_has_the_bits_of_the_softmax_kernel(case: Case) -> None:
    check_softmax_and_labels(case, run_row)


@pytest.mark.parametrize("seed", range(12))
def test_padded_pooling_equals_pytorch_s_and_onnx_runtime_s(seed: int) -> None:
    """Check random odd shapes with either pooling kernel; PyTorch only if it is installed and supports the padding."""
    row = variants("pool")[(seed + seed // 6) % 2]
    rng = np.random.default_rng(seed)
    window, largest, ceil = int(rng.integers(2, 7)), seed % 3 == 0, bool(seed % 2)
    padding = int(rng.integers(1, window))
    extra, counted = int(rng.integers(window - padding)), not largest and bool(seed // 3 % 2)
    height, width = (2 * int(side) + 1 for side in rng.integers(window // 2, 12, 2))
    stride, dtype = int(rng.integers(1, 5)), "float32"
    problem = PoolProblem(3, height, width, window, stride, largest, dtype, ceil, padding, extra, counted)
    (layer,), shape = layers_of(problem), (3, problem.height, problem.width)
    x = rng.standard_normal((2, *shape)).astype(np.float32)
    y = run_row(row, problem, x, [])[0].reshape(2, 3, *problem.pooled_size)
    theirs = [onnx_outputs(Network("alone", "", shape, (layer,)), {}, x)[layer.name]]
    if extra == 0 and 2 * padding <= window and find_spec("torch"):
        import torch

        rule = torch.from_numpy(x), window, problem.stride, padding
        pool = torch.nn.functional.max_pool2d if largest else torch.nn.functional.avg_pool2d
        own = {} if largest else {"count_include_pad": counted}
        theirs.append(pool(*rule, ceil_mode=ceil, **own).numpy())
    for found in theirs:
        np.testing.assert_allclose(y, found, rtol=0, atol=0 if largest else 2e-6, strict=True)


@pytest.mark.parametrize("place", [0, 2], ids=["w1", "w2"])
@pytest.mark.parametrize("case", [case for case in PAIRS if not getattr(case.problem, "exact", False)][1::4], ids=str)
def test_nan_in_a_weight_reaches_all_results_that_depend_on_it(case: Case, place: int) -> None:
    """NaN in the first convolution reaches all results; in the second, those of one map."""
    problem: Any = case.problem
    x, arrays = host_arrays(problem, 1)
    given = arrays[place]
    assert given is not None
    given[..., -1][given.shape[0] // 2] = np.nan
    y, *_ = run_row(case.row, problem, x, arrays)
    isnan = np.isnan(y.astype(np.float32).reshape(problem.second.maps, -1))
    assert isnan[-1].all() and isnan[:-1].all() == (place == 0) and isnan[:-1].any() == (place == 0)


@pytest.mark.parametrize("rows", WARPGROUP.tunables["ROWS"])
def test_no_stage_is_read_before_it_is_full(rows: int) -> None:
    """Producers wait for a step once LAG later ones are requested, so both steps and stages must outnumber LAG."""
    for case in served(WARPGROUP, GRID["gemm"]):
        assert isinstance(case.problem, LinearProblem)
        defines = WARPGROUP.launch_config(case.problem, {"ROWS": rows}).defines
        stages, lag, steps = int(defines["STAGES"]), int(defines["LAG"]), -(-case.problem.inputs // 64)
        assert 0 <= lag < stages <= steps and (stages > 1 or steps == 1), case


def test_all_dense_tensor_core_kernels_are_covered() -> None:
    """Sparse kernels are covered by test_sparse_pair.py and test_sparse_any.py."""
    met = {case.row.source for case in [*OF_TENSOR_CORES, *PAIRS]}
    rows = [row for name in OPERATIONS for row in variants(name) if row.instructions == "wgmma" or "pair" in name]
    assert {row.source for row in rows if why_not_on_cpu(row) is None and not row.sparse} == met
