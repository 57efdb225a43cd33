"""Sparse filters as Hopper's products want them, the kernels that multiply them, and which weights run on those."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from app.base.errors import UserError
from app.files import shipped
from app.kernels.plain_problems import GROUP, KEPT, is_two_of_four
from app.kernels.sparse_filters import compressed_filters, kept_places, metadata_words
from app.kernels.variant import Unfit
from app.network.definitions import LENET5
from app.network.graph import Graph, build_graph
from app.network.weights import load_weights
from app.planning.matching import Choices
from app.planning.plan import notices, plan
from tests.kernels.test_pair_rows import packed
from tests.support.kernel_device import device_parameters
from tests.support.kernel_grid import convolution_pair, row_of, sparsely, typed
from tests.support.kernel_oracle import check, expected_of, layers_of, operands, run
from tests.support.networks_for_tests import random_graph, rounded, with_bytes
from tests.support.on_processor import run_row
from tests.support.sparsity import drawn_two_of_four, exact_operands, with_sparse_conv2


def read_back(compressed: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The dense filters (32, 25, 64) that products make of kept weights (16, 25, 64) and metadata, thread by thread."""
    dense = np.zeros((32, 25, 64), compressed.dtype)
    for tap in range(25):
        for thread in range(128):
            warp, g, t = thread // 32, thread % 32 // 4, thread % 4
            if t // 2 != tap % 2:
                continue
            register = int(words[tap // 2, thread])
            for upper in range(2):
                row = 16 * warp + 8 * upper + g
                for four in range(4):
                    nibble = register >> (16 * upper + 4 * four) & 15
                    group = 4 * (t % 2) + four
                    first, second = nibble & 3, nibble >> 2
                    assert first < second
                    dense[4 * group + first, tap, row] = compressed[2 * group, tap, row]
                    dense[4 * group + second, tap, row] = compressed[2 * group + 1, tap, row]
    return dense


@pytest.mark.parametrize("density", [1.0, 0.5, 0.0])
def test_metadata_and_kept_weights_are_the_filters(density: float) -> None:
    """All six patterns of every four, at every tap, also where a four has one weight or none."""
    rng = np.random.default_rng(4)
    filters = drawn_two_of_four(rng).transpose(2, 0, 1, 3)
    filters = np.where(rng.random(filters.shape) < density, filters, 0)
    places = kept_places(filters)
    compressed, words = compressed_filters(filters, places), metadata_words(places.reshape(8, 2, 25, 64))
    assert places.shape == (8, 2, 5, 5, 64) and compressed.shape == (16, 5, 5, 64) and compressed.dtype == np.float32
    assert words.shape == (13, 128) and words.dtype == np.uint32
    assert not words[12].reshape(32, 4)[:, 2:].any()  # of the tap after the last
    np.testing.assert_array_equal(
        read_back(compressed.reshape(16, 25, 64), words), filters.reshape(32, 25, 64), strict=True
    )
    if density == 1:
        assert len({tuple(pair) for pair in places[3].reshape(2, -1).T}) == 6


SPARSE_PAIRS = {
    "wgmma-sparse": typed(sparsely(convolution_pair()), "float16"),
    "wgmma-sparse-exact": typed(sparsely(replace(convolution_pair(), exact=True)), "float16x2"),
}
BOTH_KERNELS = pytest.mark.parametrize("name", SPARSE_PAIRS)


def results(name: str, x: np.ndarray, parameters: dict[str, np.ndarray], **settings: int) -> np.ndarray:
    """What a kernel makes of images and parameters as in a weights file, flat."""
    problem = SPARSE_PAIRS[name]
    arrays = [None if a is None else a.astype(np.float32) for a in device_parameters(problem, parameters)]
    y, *_ = run_row(row_of("conv_pair", name), problem, x, arrays, settings)
    return y


def check_results(name: str, count: int, kept: np.ndarray, **settings: int) -> None:
    """Hold a kernel against float64, element by element: exactly for whole numbers, then random ones with a tolerance.

    Batches of fewer images must have the same bits, on more blocks too. kept: which weights (5, 5, 32, 64) of the
    second filters stay.
    """
    problem = SPARSE_PAIRS[name]
    x, parameters = exact_operands(count, kept)
    wanted = run(layers_of(problem), x.astype(np.float64), parameters)
    assert wanted.max() < 512 and (wanted.max() > 10 or not kept.any())  # of quarters, of which float16 holds 2,048
    np.testing.assert_array_equal(results(name, x, parameters, **settings), wanted)
    x, parameters = operands(replace(problem, sparse=False), count)
    parameters["layer2"] = parameters["layer2"] * kept
    y = results(name, x, parameters, **settings)
    check(y, problem, expected_of(problem, x.astype(np.float64), parameters))
    for fewer in {1, count - 1}:
        part = results(name, x[:fewer], parameters, **settings)
        np.testing.assert_array_equal(part, y[: len(part)])


@pytest.mark.parametrize("places", [*combinations(range(GROUP), KEPT)], ids=str)
@BOTH_KERNELS
def test_each_of_the_six_patterns(name: str, places: tuple[int, int]) -> None:
    """In every four, at every tap: none of the patterns hides another's mistake."""
    kept = np.zeros((5, 5, 32 // GROUP, GROUP, 64), bool)
    kept[:, :, :, places, :] = True
    check_results(name, 5, kept.reshape(5, 5, 32, 64))


@pytest.mark.parametrize("density", [1.0, 0.5, 0.05, 0.0])
@BOTH_KERNELS
def test_patterns_drawn_at_random(name: str, density: float) -> None:
    """With two weights in every four, fewer, hardly any, and none. The batches end with a group that is not full."""
    rng = np.random.default_rng(12)
    kept = (drawn_two_of_four(rng) != 0) & (rng.random((5, 5, 32, 64)) < density)
    assert is_two_of_four(kept)
    check_results(name, 23, kept)


@pytest.mark.parametrize("images", [2, 3, 4])
def test_images_of_a_warpgroup(images: int) -> None:
    """With one more in a batch than two blocks take at a time, as many, and one."""
    blocks_take = {2: 20, 3: 18, 4: 24}[images]
    check_results("wgmma-sparse", blocks_take + 1, drawn_two_of_four(np.random.default_rng(13)) != 0, images=images)


@BOTH_KERNELS
def test_one_weight_at_a_wrong_place_shows(name: str) -> None:
    """The check above can fail: with one of 25,600 weights beside its place, of the map with the greatest results."""
    x, parameters = exact_operands(2, drawn_two_of_four(np.random.default_rng(14)) != 0)
    wanted = run(layers_of(SPARSE_PAIRS[name]), x.astype(np.float64), parameters)
    moved = parameters["layer2"].copy()
    four = moved[2, 3, 8:12, wanted.reshape(2, 64, 16).sum(axis=(0, 2)).argmax()]
    kept, empty = np.flatnonzero(four)[0], np.flatnonzero(four == 0)[0]
    four[[kept, empty]] = four[[empty, kept]]
    assert 0 < np.count_nonzero(results(name, x, {**parameters, "layer2": moved}) != wanted) <= 32


def sparse_graph() -> Graph:
    """lenet5 with random weights that float16 holds, conv2 2:4 sparse."""
    return with_sparse_conv2(rounded(random_graph(LENET5, bias=False)))


def chosen(graph: Graph, precision: str, arch: str = "sm_90a", sparse: bool = True) -> str:
    """The kernel of both convolutions."""
    asked = Choices(precision, sparse=sparse)
    planned = plan(graph, arch, asked)
    name = planned.nodes[0].variant.name
    told = [note for note in notices(planned, asked) if "2:4 sparse" in note]
    assert told == (["conv2 2:4 sparse: half of its products are skipped"] if "sparse" in name else [])
    return name


def test_sparse_weights_run_on_sparse_kernels_and_one_weight_more_does_not() -> None:
    graph = sparse_graph()
    assert [chosen(graph, precision) for precision in ("fp16", "fp32x")] == ["wgmma-sparse", "wgmma-sparse-exact"]
    assert [chosen(graph, p, sparse=False) for p in ("fp16", "fp32x")] == ["wgmma", "wgmma-exact"]
    assert chosen(graph, "fp16", "sm_80") == "mma"
    conv1 = graph.parameters["conv1"] * np.float32(1.001)  # which float16 does not hold
    inexact = replace(graph, parameters={**graph.parameters, "conv1": conv1})
    assert [chosen(inexact, precision) for precision in ("fp16", "fp32x")] == ["wgmma-sparse", "wgmma-split"]
    filters = graph.parameters["conv2"].copy()
    filters[tuple(np.argwhere(filters == 0)[4321])] = 0.5
    dense = replace(graph, parameters={**graph.parameters, "conv2": filters})
    assert [chosen(dense, precision) for precision in ("fp16", "fp32x")] == ["wgmma", "wgmma-exact"]


def test_a_named_kernel_runs_if_it_serves_the_weights() -> None:
    """A dense one on sparse weights, too; and int8, which has no sparse one, as always."""
    sparse, dense = sparse_graph(), rounded(random_graph(LENET5, bias=False))
    for name in ("wgmma", "wgmma-sparse"):
        choices = Choices("fp16", kernels={"conv_pair": row_of("conv_pair", name)})
        assert plan(sparse, "sm_90a", choices).nodes[0].variant.name == name
    with pytest.raises(UserError, match=r"wgmma-sparse does not support conv1\+conv2: it serves 2:4 sparse filters"):
        plan(dense, "sm_90a", choices)
    with pytest.raises(UserError, match=r"wgmma-sparse does not support conv1\+conv2"):
        plan(sparse, "sm_90a", replace(choices, sparse=False))
    assert plan(with_bytes(sparse), "sm_90a", Choices("int8")).nodes[0].variant.name == "wgmma-int8"


def test_the_shipped_sparse_weights_run_on_sparse_kernels() -> None:
    weights = load_weights(shipped.weights_path("lenet5_sparse"))
    graph = build_graph(LENET5, weights)
    assert [chosen(graph, precision) for precision in ("fp16", "fp32x")] == ["wgmma-sparse", "wgmma-sparse-exact"]
    assert weights.quantised is not None and is_two_of_four(weights.quantised.filters)


@pytest.mark.parametrize("factor", [1e-8, 1e-3, 1e8])
def test_powers_of_two_keep_filters_of_any_size_sparse(factor: float) -> None:
    """Those that float16 would round to zero, or to infinity."""
    row, problem = row_of("conv_pair", "wgmma-sparse"), typed(sparsely(convolution_pair()), "float16")
    w1 = np.random.default_rng(7).standard_normal((1, 5, 5, 32)).astype(np.float32)
    w2 = (drawn_two_of_four(np.random.default_rng(8)).transpose(2, 0, 1, 3) * factor).astype(np.float32)
    _, filters2, scales = packed(row, problem, [w1, None, w2, None])
    assert filters2 is not None and scales is not None and np.isfinite(scales).all()
    kept = filters2[: 25 * 2048].view(np.float16)
    assert np.isfinite(kept).all() and np.count_nonzero(kept) == np.count_nonzero(w2)


def test_images_of_a_warpgroup_have_registers() -> None:
    row, problem = row_of("conv_pair", "wgmma-sparse"), typed(sparsely(convolution_pair()), "float16")
    assert [row.launch_config(problem, {"images": n}).launches[0].threads for n in (2, 3, 4)] == [640, 384, 384]
    with pytest.raises(Unfit, match="no registers for 5 images"):
        row.launch_config(problem, {"images": 5})
