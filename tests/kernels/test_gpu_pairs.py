"""Test the kernels of two layers on a GPU: every element, any batch, poisoned memory, NaN, extreme images.

The last test checks lenet5's labels with the int8 kernels, whose second convolution multiplies bytes.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.kernels.plain_problems import GROUP
from app.kernels.problems import PairProblem
from app.kernels.registry import variants
from app.network.definitions import LENET5
from app.network.graph import build_graph
from app.network.reference import load_reference
from app.network.verdicts import compare_labels
from data_tools.fashion_mnist import open_split
from tests.engine.test_gpu_engine import classify
from tests.support.kernel_cases import Case, on_a_card, served
from tests.support.kernel_device import compile_selected
from tests.support.kernel_grid import ANY_PRODUCT_PAIRS, CONVOLUTION_PAIRS, PRODUCT_PAIRS
from tests.support.kernel_oracle import check
from tests.support.pair_device import Runner, errors, has_shipped_weights, images, poison_shared, same_bits, weights
from tests.support.sparsity import shipped_lenet5

pytestmark = pytest.mark.gpu
BATCHES = (1, 7, 8, 9, 31, 88, 999, 9_999)  # up to 8 use a cluster; of 88, the last block may have 8
BATCHES_OF_BLOCKS = (1, 7, 31, 999)  # for kernels with a block per image, which larger batches would not test better
# Products of lenet5's sizes; the grid of test_gpu_kernels.py has the others.
PRODUCTS = [*(pair for pair in PRODUCT_PAIRS if pair.first.inputs == 1024), *ANY_PRODUCT_PAIRS[:2]]
PROBLEMS: dict[str, list[Any]] = {"conv_pair": CONVOLUTION_PAIRS, "gemm_pair": PRODUCTS}
CASES = on_a_card(
    lambda: [case for name, problems in PROBLEMS.items() for row in variants(name) for case in served(row, problems)]
)
INT8_CASES = [case for case in CASES if case.problem.dtype == "int8"]  # empty except on Hopper
# Images per warpgroup and warpgroups other than the defaults, 2 and 5; sparse kernels derive warpgroups from images.
SETTINGS = [{"images": i, "warpgroups": w} for i, w in ((1, 6), (1, 3), (2, 4), (3, 4), (4, 3))]
INT8_GROUPINGS = [
    pytest.param(
        replace(case, parameters=tuple(settings.items())), case, id=f"{case}-{'-'.join(map(str, settings.values()))}"
    )
    for case in INT8_CASES
    for settings in ([{"images": 3}, {"images": 4}] if case.row.sparse else SETTINGS)
]
ALL_CASES = pytest.mark.parametrize("case", CASES, ids=str)


def pair_of(case: Case) -> PairProblem:
    """Return the case's problem, which must be one of two layers."""
    assert isinstance(case.problem, PairProblem)
    return case.problem


WEIGHTED = [
    pytest.param(case, kind, id=f"{case}-{kind}")
    for kind in ("random", "shipped")
    for case in CASES
    if kind == "random" or has_shipped_weights(pair_of(case))
]


@pytest.fixture(scope="module", autouse=True)
def compile_kernels(request: pytest.FixtureRequest) -> None:
    compile_selected(request)


def check_tolerance(problem: PairProblem, arrays: list[Any], x: np.ndarray, y: Any) -> None:
    """Check every element of results y for images x and parameters ``arrays`` against the tolerance table."""
    import cupy

    from app.lab.bench.oracle import expected_results

    given = [None if array is None else cupy.asarray(array) for array in arrays]
    check(y.reshape(-1), problem, expected_results(problem, cupy.asarray(x), *given))


def check_labels(found: list[Any]) -> None:
    """Check that labels equal NumPy's argmax of the scores. found: [scores, labels], or [features] without labels."""
    for labels in found[1:]:
        np.testing.assert_array_equal(labels.get()[:, 0], found[0].get().argmax(axis=1))


@pytest.mark.parametrize(("case", "kind"), WEIGHTED)
def test_every_element_of_any_batch(case: Case, kind: str) -> None:
    """Errors are at most twice those of a plain implementation, for split operands one in float32 (the maximum alone).

    Kernels of any sizes are checked by the tolerance table instead, since short sums may be exact in float32 by chance.
    An image has the same bits in every batch and every run.
    """
    problem = pair_of(case)
    counts = BATCHES_OF_BLOCKS if case.row.name.endswith("-any") and case.row.operation == "conv_pair" else BATCHES
    arrays, x = weights(problem, kind), images(problem, counts[-1])
    run = Runner(case, arrays, x)
    whole = run()
    if case.row.name.endswith("-any"):
        check_tolerance(problem, arrays, x, whole[0])
    else:
        own, plain = errors(problem, arrays, x, whole[0])
        assert plain.most > 0
        assert own.most <= 2 * plain.most, f"greatest error {own.most:.3g}, a plain implementation's {plain.most:.3g}"
        if problem.dtype in ("float16", "int8"):
            assert own.rms <= 2 * plain.rms, f"errors' RMS {own.rms:.3g}, a plain implementation's {plain.rms:.3g}"
    check_labels(whole)
    for count in counts:
        for _ in range(2):
            assert same_bits(run(count), [result[:count] for result in whole]), f"{count} images of {len(x)} differ"


@ALL_CASES
def test_arrays_of_a_small_batch_give_the_bits_of_a_large_one(case: Case) -> None:
    """Arrays that end with the last image give the bits of a large batch: nothing beyond them is read or written."""
    problem = pair_of(case)
    arrays, x = weights(problem, "random"), images(problem, 31)
    whole = Runner(case, arrays, x)()
    for count in (1, 2, 3, 5, 7, 8, 9, 13):
        assert same_bits(Runner(case, arrays, x[:count])(), [result[:count] for result in whole])


@ALL_CASES
@pytest.mark.parametrize("kind", ["0", "255", "noise"])
def test_extreme_images(case: Case, kind: str) -> None:
    import cupy

    problem = pair_of(case)
    for source in ("random", "shipped") if has_shipped_weights(problem) else ("random",):
        arrays, x = weights(problem, source), images(problem, 31, kind)
        found = Runner(case, arrays, x)()
        check_tolerance(problem, arrays, x, found[0])
        check_labels(found)
        if kind != "noise":
            assert same_bits(found, [cupy.broadcast_to(result[:1], result.shape).copy() for result in found])
        keeps_zeros = "sigmoid" not in (problem.first.activation, problem.second.activation)
        if kind == "0" and keeps_zeros and not any(array is not None for array in arrays[1::2]):
            assert not found[0].any()


@ALL_CASES
def test_nothing_is_read_from_shared_memory_that_was_not_written(case: Case) -> None:
    """Shared memory full of zeros, NaN or float16 infinities gives the same bits.

    NaN times zero is NaN, but a ReLU that does not keep NaN would turn it into a plausible 0.
    """
    problem = pair_of(case)
    arrays, x = weights(problem, "random"), images(problem, 999)
    run = Runner(case, arrays, x)
    for count in (1, 2, 7, 8, 31, 81, 999):
        found = []
        for word in (0, 0xFFFFFFFF, 0x7C007C00):  # the last: infinities in float16
            poison_shared(word)
            found.append(run(count))
        assert bool(np.isfinite(found[0][0]).all())
        assert same_bits(found[1], found[0]) and same_bits(found[2], found[0]), f"{count} images"


# Plans refuse NaN in weights that are exact in float16 or 8-bit integers.
@pytest.mark.parametrize("case", [c for c in CASES if not pair_of(c).exact and pair_of(c).dtype != "int8"], ids=str)
@pytest.mark.parametrize("place", [0, 1, 2, 3], ids=["w1", "bias1", "w2", "bias2"])
def test_nan_in_a_parameter_reaches_all_results_that_depend_on_it(case: Case, place: int) -> None:
    """NaN in the first layer or before a softmax reaches all results; in the second, one map or the label's class."""
    problem = pair_of(case)
    everything = place < 2 or getattr(problem.second, "softmax", False)
    arrays = weights(problem, "random")
    parameter = arrays[place]
    if parameter is None:
        pytest.skip("the problem has no such bias")
    own, last = min(3, parameter.shape[-1] - 1), problem.second.arguments()[2].fixed  # of its maps or classes
    if getattr(problem, "sparse", False) and place < 3:  # all filters must read the map with NaN: zeros are skipped
        read, w2 = own if place < 2 else len(parameter) // 2, np.array(arrays[2])
        w2[read // GROUP * GROUP :][:GROUP], w2[read] = 0, 1
        arrays[2], parameter = w2, w2 if place == 2 else parameter
    parameter = parameter.copy()
    parameter[(*(size // 2 for size in parameter.shape[:-1]), own)] = np.nan
    arrays[place] = parameter
    y, *labels = Runner(case, arrays, np.maximum(images(problem, 31), 1))()
    isnan = np.isnan(y.get().astype(np.float32)).reshape(31, last, -1)
    if everything:
        assert isnan.all()
    else:
        assert isnan[:, own].all() and not np.delete(isnan, own, axis=1).any()
    for found in labels:
        np.testing.assert_array_equal(found.get(), 0 if everything else own)


@pytest.mark.parametrize(("case", "usual"), INT8_GROUPINGS)
def test_int8_bits_do_not_depend_on_images_per_warpgroup(case: Case, usual: Case) -> None:
    arrays, x = weights(pair_of(case), "random"), images(pair_of(case), 70)
    wanted, run = Runner(usual, arrays, x)(), Runner(case, arrays, x)
    for count in (70, 1, 2, 3, 33):
        poison_shared(0x7FC07FC0)
        assert same_bits(run(count), [result[:count] for result in wanted]), f"{count} images"


@pytest.mark.parametrize("case", [case for case in INT8_CASES if case.row.sparse], ids=str)
def test_sparse_int8_kernel_gives_the_bits_of_the_dense_one(case: Case) -> None:
    """Sums of integers are exact, so sparse and dense products must agree to the bit."""
    arrays, x = weights(pair_of(case), "random"), images(pair_of(case), 1001)
    (dense,) = (other for other in INT8_CASES if not other.row.sparse)
    wanted, run = Runner(dense, arrays, x)(), Runner(case, arrays, x)
    for count in (1, 2, 3, 263, 529, 1001):
        assert same_bits(run(count), [result[:count] for result in wanted]), f"{count} images"


@pytest.mark.parametrize("case", INT8_CASES, ids=str)
def test_int8_labels_of_the_test_images(case: Case) -> None:
    """Labels differ from the reference only at near-ties, and as many are correct up to the number of differences."""
    given = shipped_lenet5(case.row.sparse)
    pixels, truth, _ = open_split("test")
    reference = load_reference(given, LENET5)
    assert reference is not None
    labels, _ = classify(build_graph(LENET5, given), pixels[:, None], chunk=2000, precision="int8")
    found = compare_labels(labels, reference, "reference", "int8")
    assert found.holds and 0 < len(found.differences) < 30, found.verdict
    assert abs(int((labels == truth).sum()) - given.expected_correct[10_000]) <= len(found.differences)
