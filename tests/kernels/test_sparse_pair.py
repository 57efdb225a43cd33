"""Test 2:4 sparse filters for lenet5: packing for Hopper, kernels that multiply them, and which weights use these."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from app.base.errors import UserError
from app.kernels.fused.sparse_pair import kept_positions, pack_sparse_filters
from app.kernels.plain_problems import GROUP, KEPT, is_two_of_four
from app.kernels.variant import Unfit
from app.network.definitions import LENET5
from app.network.graph import Graph, build_graph
from app.planning.matching import Choices
from app.planning.plan import notices, plan
from tests.kernels.test_pair_rows import pack_for
from tests.support.kernel_device import device_parameters
from tests.support.kernel_grid import convolution_pair, row_of, sparsely, typed
from tests.support.kernel_oracle import check, expected_of, layers_of, operands, run
from tests.support.networks_for_tests import random_graph, rounded, with_bytes
from tests.support.on_processor import run_row
from tests.support.sparsity import (
    drawn_two_of_four,
    exact_operands,
    shipped_lenet5,
    sparsity_patterns,
    with_sparse_conv2,
)


def unpack_float16(packed: np.ndarray) -> np.ndarray:
    """Return the filters (32, 25, 64) of packed float16 ones, decoded from each thread's metadata."""
    words = packed[25 * 2048 :].view(np.uint32).reshape(4, 128, 4)
    assert not words[3, :, 1:].any() and not words[3, 2::4, 0].any()  # words for taps beyond the last
    kept = packed[: 25 * 2048].view(np.float16).reshape(25, 2, 64, 8)  # 8 kept weights of a row lie together
    dense = np.zeros((32, 25, 64), np.float16)
    for tap, thread, upper, four in product(range(25), range(128), range(2), range(4)):
        warp, g, t = thread // 32, thread % 32 // 4, thread % 4
        if t // 2 != tap % 2:
            continue
        row, group = 16 * warp + 8 * upper + g, 4 * (t % 2) + four
        nibble = int(words[tap // 8, thread, tap % 8 // 2]) >> (16 * upper + 4 * four) & 15
        write_kept_weights(
            dense[4 * group : 4 * group + 4, tap, row], kept[tap, group // 4, row, group % 4 * 2 :], nibble
        )
    return dense


# The tap of each group of 16 numbers along k in each int8 product: filter row and column, half of the channels.
NO_TAP = (0, 0, -1)
PARTS = [
    *(
        part
        for half in range(2)
        for part in (*([(y, x, half) for x in range(4)] for y in range(5)), [(y, 4, half) for y in range(4)])
    ),
    [NO_TAP, (4, 4, 0), NO_TAP, (4, 4, 1)],
]


def unpack_int8(packed: np.ndarray) -> np.ndarray:
    """Return the filters (32, 25, 64) of packed int8 ones; weights must be zero where a product has no tap."""
    words = packed[13 * 2048 :].view(np.uint32).reshape(4, 128, 4)
    assert not words[3, :, 1:].any()  # words for products beyond the last
    kept = packed[: 13 * 2048].view(np.int8).reshape(13, 2, 64, 16)
    dense = np.zeros((2, 16, 5, 5, 64), np.int8)
    for at, thread, i in product(range(13), range(128), range(8)):
        warp, g, t = thread // 32, thread % 32 // 4, thread % 4
        row, group = 16 * warp + 8 * (t % 2) + g, 8 * (t // 2) + i
        nibble = int(words[at // 4, thread, at % 4]) >> 4 * i & 15
        four = np.zeros(4, np.int8)
        write_kept_weights(four, kept[at, group // 8, row, group % 8 * 2 :], nibble)
        y, x, half = PARTS[at][group // 4]
        if half < 0:
            assert not four.any()
        else:
            dense[half, group % 4 * 4 : group % 4 * 4 + 4, y, x, row] = four
    return dense.reshape(32, 25, 64)


def write_kept_weights(four: np.ndarray, kept: np.ndarray, nibble: int) -> None:
    """Write the two weights at the start of ``kept`` to the positions in ``four`` that four bits of metadata name."""
    first, second = nibble & 3, nibble >> 2
    assert first < second
    four[first], four[second] = kept[:2]


@pytest.mark.parametrize("density", [1.0, 0.5, 0.0])
@pytest.mark.parametrize(("dtype", "products"), [("float16", 25), ("int8", 13)])
def test_metadata_and_kept_weights_are_the_filters(dtype: str, products: int, density: float) -> None:
    """Unpacking restores the filters: all six patterns at every tap, also groups of four with one weight or none."""
    rng = np.random.default_rng(4)
    filters = drawn_two_of_four(rng).transpose(2, 0, 1, 3)
    filters = (30 * np.where(rng.random(filters.shape) < density, filters, 0)).astype(dtype)
    packed = pack_sparse_filters(filters)
    assert packed.dtype == np.uint8 and packed.shape == (products * 2048 + 4 * 128 * 16,)
    unpack = unpack_float16 if dtype == "float16" else unpack_int8
    np.testing.assert_array_equal(unpack(packed), filters.reshape(32, 25, 64), strict=True)
    places = kept_positions(filters)
    assert places.shape == (8, 2, 5, 5, 64)
    if density == 1:
        assert len({tuple(pair) for pair in places[3].reshape(2, -1).T}) == 6


PAIRS = {
    "wgmma-sparse": typed(sparsely(convolution_pair()), "float16"),
    "wgmma-sparse-exact": typed(sparsely(replace(convolution_pair(), exact=True)), "float16x2"),
    "wgmma-sparse-int8": typed(sparsely(convolution_pair()), "int8"),
    "wgmma-int8": typed(convolution_pair(), "int8"),
}
ALL_KERNELS = pytest.mark.parametrize("name", [name for name in PAIRS if "sparse" in name])


def run_kernel(name: str, x: np.ndarray, parameters: dict[str, np.ndarray], **settings: int) -> np.ndarray:
    """Return a kernel's results y, flat, by emulation. parameters: arrays as in a weights file; settings: tunables."""
    problem = PAIRS[name]
    arrays = [None if a is None else a.astype(np.float32) for a in device_parameters(problem, parameters)]
    y, *_ = run_row(row_of("conv_pair", name), problem, x, arrays, settings)
    return y


def exact_results(name: str, x: np.ndarray, parameters: dict[str, np.ndarray]) -> np.ndarray:
    """Return exact results for whole numbers: those of float64 layers, or for int8 of the dense kernel."""
    if PAIRS[name].dtype == "int8":
        return run_kernel("wgmma-int8", x, parameters)
    return run(layers_of(PAIRS[name]), x.astype(np.float64), parameters)


def check_whole_numbers(name: str, count: int, kept: np.ndarray, **settings: int) -> None:
    """Assert that a kernel is exact for ``count`` images of whole numbers, for one fewer, and for one.

    kept: mask (5, 5, 32, 64) of the second filters' nonzero weights.
    """
    x, parameters = exact_operands(count, kept)
    most = 16 if PAIRS[name].dtype == "int8" else 1  # activations end at 1
    parameters["layer1"] /= most
    wanted = exact_results(name, x, parameters)
    assert wanted.max() < 512 / most and (wanted.max() > 10 / most or not kept.any())  # of quarters: float16 has 2,048
    for images in (count, count - 1, 1):
        y = run_kernel(name, x[:images], parameters, **settings)
        np.testing.assert_array_equal(y, wanted[: len(y)])


PATTERNS = sparsity_patterns((5, 5, 32, 64))


@pytest.mark.grid
@pytest.mark.parametrize("pattern", PATTERNS)
@ALL_KERNELS
def test_results_are_exact_for_all_patterns(name: str, pattern: str) -> None:
    """Results are exact for each pattern alone, so no pattern can hide an error in another."""
    assert is_two_of_four(PATTERNS[pattern])
    check_whole_numbers(name, 5, PATTERNS[pattern])


@ALL_KERNELS
def test_random_operands(name: str) -> None:
    """The last group of the batch is not full; fewer images have the same bits. int8 equals the dense kernel."""
    problem = PAIRS[name]
    x, parameters = operands(problem, 23)
    y = run_kernel(name, x, parameters)
    check(y, problem, expected_of(problem, x.astype(np.float64), parameters))
    if problem.dtype == "int8":
        np.testing.assert_array_equal(y, exact_results(name, x, parameters), strict=True)
    for fewer in (1, 22):
        part = run_kernel(name, x[:fewer], parameters)
        np.testing.assert_array_equal(part, y[: len(part)])


@pytest.mark.parametrize("images", [2, 3, 4])
@pytest.mark.parametrize("name", ["wgmma-sparse", "wgmma-sparse-int8"])
def test_images_per_warpgroup(name: str, images: int) -> None:
    """Batches have one image more than two blocks take at a time, as many, and one."""
    blocks_take = {2: 20, 3: 18, 4: 24}[images]
    check_whole_numbers(name, blocks_take + 1, drawn_two_of_four(np.random.default_rng(13)) != 0, images=images)


@ALL_KERNELS
def test_one_weight_at_a_wrong_position_is_found(name: str) -> None:
    """One of 25,600 weights at a wrong position changes results, so the exact checks above can fail."""
    x, parameters = exact_operands(2, drawn_two_of_four(np.random.default_rng(14)) != 0)
    wanted = exact_results(name, x, parameters)
    moved = parameters["layer2"].copy()
    four = moved[2, 3, 8:12, wanted.reshape(2, 64, 16).sum(axis=(0, 2)).argmax()]
    kept, empty = np.flatnonzero(four)[0], np.flatnonzero(four == 0)[0]
    four[[kept, empty]] = four[[empty, kept]]
    assert 0 < np.count_nonzero(run_kernel(name, x, {**parameters, "layer2": moved}) != wanted) <= 32


def sparse_graph() -> Graph:
    """Return lenet5 with random weights that float16 represents exactly, conv2's 2:4 sparse."""
    return with_sparse_conv2(rounded(random_graph(LENET5, bias=False)))


def chosen_kernel(graph: Graph, precision: str, arch: str = "sm_90a", sparse: bool = True) -> str:
    """Return the name of the kernel for both convolutions; check the plan's notices about it."""
    asked = Choices(precision, sparse=sparse)
    planned = plan(graph, arch, asked)
    name = planned.nodes[0].variant.name
    told = [note for note in notices(planned, asked) if note.startswith("conv2 ")]
    assert told == [
        *["conv2 2:4 sparse: half of its products are skipped"] * ("sparse" in name),
        *["conv2 in 8-bit integers: coarser than fp16"] * ("int8" in name),
    ]
    return name


PRECISIONS = ("fp16", "fp32x", "int8")
SPARSE, DENSE = ["wgmma-sparse", "wgmma-sparse-exact", "wgmma-sparse-int8"], ["wgmma", "wgmma-exact", "wgmma-int8"]


def add_one_weight(filters: np.ndarray, value: float) -> np.ndarray:
    """Return the filters with ``value`` in place of a zero, as the third nonzero weight of its group of four."""
    more = filters.copy()
    fours = more.reshape(25, 8, GROUP, 64)
    full = np.count_nonzero(fours, axis=2, keepdims=True) == KEPT
    fours[tuple(np.argwhere((fours == 0) & full)[4321])] = value
    return more


def test_one_weight_more_than_2_4_selects_dense_kernels() -> None:
    graph = with_bytes(sparse_graph())
    assert [chosen_kernel(graph, precision) for precision in PRECISIONS] == SPARSE
    assert [chosen_kernel(graph, precision, sparse=False) for precision in PRECISIONS] == DENSE
    assert chosen_kernel(graph, "fp16", "sm_80") == "mma"
    conv1 = graph.parameters["conv1"] * np.float32(1.001)  # which float16 does not hold
    inexact = replace(graph, parameters={**graph.parameters, "conv1": conv1})
    assert [chosen_kernel(inexact, precision) for precision in ("fp16", "fp32x")] == ["wgmma-sparse", "wgmma-split"]
    filters = add_one_weight(graph.parameters["conv2"], 0.5)
    dense = with_bytes(replace(graph, parameters={**graph.parameters, "conv2": filters}))
    assert [chosen_kernel(dense, precision) for precision in PRECISIONS] == DENSE


def test_int8_kernels_are_chosen_by_the_int8_filters() -> None:
    """Only the 8-bit filters decide, also if the float32 weights have more or fewer zeros."""
    graph = with_bytes(sparse_graph())
    assert graph.quantised is not None
    more = replace(graph, quantised=replace(graph.quantised, filters=add_one_weight(graph.quantised.filters, 1)))
    assert [chosen_kernel(more, precision) for precision in PRECISIONS] == [*SPARSE[:2], DENSE[2]]
    filters = add_one_weight(graph.parameters["conv2"], 0.5)
    dense = replace(graph, parameters={**graph.parameters, "conv2": filters})
    assert [chosen_kernel(dense, precision) for precision in PRECISIONS] == [*DENSE[:2], SPARSE[2]]


def test_a_requested_kernel_runs_if_it_supports_the_weights() -> None:
    """A dense kernel requested by name runs on sparse weights; a sparse one refuses dense weights."""
    sparse, dense = (with_bytes(g) for g in (sparse_graph(), rounded(random_graph(LENET5, bias=False))))
    for precision, *names in (("fp16", "wgmma", "wgmma-sparse"), ("int8", "wgmma-int8", "wgmma-sparse-int8")):
        for name in names:
            choices = Choices(precision, kernels={"conv_pair": row_of("conv_pair", name)})
            assert plan(sparse, "sm_90a", choices).nodes[0].variant.name == name
        message = rf"{name} does not support conv1\+conv2"
        with pytest.raises(UserError, match=f"{message}: it serves 2:4 sparse filters"):
            plan(dense, "sm_90a", choices)
        with pytest.raises(UserError, match=message):
            plan(sparse, "sm_90a", replace(choices, sparse=False))


def test_the_shipped_weights_run_on_sparse_kernels() -> None:
    graph = build_graph(LENET5, shipped_lenet5(sparse=True))
    assert [chosen_kernel(graph, precision) for precision in PRECISIONS] == SPARSE


@pytest.mark.parametrize("factor", [1e-8, 1e-3, 1e8])
def test_powers_of_two_keep_filters_of_any_size_sparse(factor: float) -> None:
    """Packing keeps all weights that float16 would round to zero or infinity without scaling."""
    row, problem = row_of("conv_pair", "wgmma-sparse"), typed(sparsely(convolution_pair()), "float16")
    w1 = np.random.default_rng(7).standard_normal((1, 5, 5, 32)).astype(np.float32)
    w2 = (drawn_two_of_four(np.random.default_rng(8)).transpose(2, 0, 1, 3) * factor).astype(np.float32)
    _, filters2, scales = pack_for(row, problem, [w1, None, w2, None])
    assert filters2 is not None and scales is not None and np.isfinite(scales).all()
    kept = filters2[: 25 * 2048].view(np.float16)
    assert np.isfinite(kept).all() and np.count_nonzero(kept) == np.count_nonzero(w2)


@pytest.mark.parametrize("name", ["wgmma-sparse", "wgmma-sparse-int8"])
def test_images_per_warpgroup_limit_the_threads(name: str) -> None:
    row, problem = row_of("conv_pair", name), PAIRS[name]
    assert [row.launch_config(problem, {"images": n}).launches[0].threads for n in (2, 3, 4)] == [640, 384, 384]
    with pytest.raises(Unfit, match="no registers for 5 images"):
        row.launch_config(problem, {"images": 5})
