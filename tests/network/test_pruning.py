"""2:4 sparsity: recognised exactly, pruned with the least error, and kept by rounding and quantising."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from app.kernels.plain_problems import is_two_of_four
from app.network.definitions import LENET5
from app.network.graph import Graph, network_graph
from app.network.pruning import fit_weights, greatest_two, prune_filters, sparsify_layers
from app.network.rounding import DAMPING, quantise_convolution, round_layers
from tests.support.networks_for_tests import random_graph, random_images
from tests.support.sparsity import drawn_two_of_four

COUNT = 60


def test_filters_are_pruned_where_four_channels_are_whole() -> None:
    graph = network_graph("lenet5")
    pruned = prune_filters(graph)
    assert is_two_of_four(pruned.parameters["conv2"]) and not is_two_of_four(graph.parameters["conv2"])
    changed = pruned.parameters["conv2"] != graph.parameters["conv2"]
    assert 0.49 < changed.mean() <= 0.5 and not pruned.parameters["conv2"][changed].any()
    others = graph.parameters.keys() - {"conv2"}
    assert all(pruned.parameters[name] is graph.parameters[name] for name in others)


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_random_patterns_are_recognised_and_one_weight_more_is_not(dtype: type) -> None:
    rng = np.random.default_rng(1)
    filters = np.sign(drawn_two_of_four(rng)).astype(dtype)
    assert is_two_of_four(filters)
    assert is_two_of_four(np.where(rng.random(filters.shape) < 0.5, filters, 0))  # fewer weights are right, too
    places = np.argwhere(filters == 0)
    for place in places[rng.integers(len(places), size=50)]:
        more = filters.copy()
        more[tuple(place)] = 1
        assert not is_two_of_four(more)


def test_what_has_no_groups_of_four_maps_is_not_sparse() -> None:
    zeros = np.zeros((5, 5, 32, 64), np.float32)
    assert is_two_of_four(zeros) and not is_two_of_four(zeros[:, :, :30]) and not is_two_of_four(zeros[:, :, :1])
    assert not is_two_of_four(zeros.reshape(-1, 64))  # of a fully connected layer
    across = zeros.copy()
    across[0, 0, 2:6, 0] = 1  # four weights side by side, but of two groups
    assert is_two_of_four(across)


def test_each_four_lose_the_pair_without_which_least_squares_fit_best() -> None:
    """By trying every pair of one group, with the other group whole."""
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((40, 8)) @ rng.standard_normal((8, 8)), rng.standard_normal((8, 5))
    found = fit_weights(w, x.T @ x, x.T @ x @ w, 8)
    damped = np.vstack([x, np.sqrt(DAMPING * np.square(x).sum() / 8) * np.eye(8)])
    for output in range(5):
        y = damped @ w[:, output]
        kept = np.flatnonzero(found[:, output])
        assert [np.sum(kept < 4), len(kept)] == [2, 4]
        for group in (0, 4):

            def error_without(pair: tuple[int, int], group: int = group, y: np.ndarray = y) -> float:
                rest = np.delete(damped, [group + at for at in pair], axis=1)
                return float(np.linalg.lstsq(rest, y, rcond=None)[1][0])

            best = min(combinations(range(4), 2), key=error_without)
            assert set(range(group, group + 4)) - set(kept) == {group + at for at in best}
        fit = np.linalg.lstsq(damped[:, kept], y, rcond=None)[0]
        np.testing.assert_allclose(found[kept, output], fit, rtol=1e-9)


def test_later_layers_get_the_least_squares_fit_of_their_former_results() -> None:
    rng = np.random.default_rng(3)
    x, y, w = rng.standard_normal((30, 6)), rng.standard_normal((30, 4)), rng.standard_normal((6, 4))
    found = fit_weights(w, x.T @ x, x.T @ y, 0)
    weight = np.sqrt(DAMPING * np.square(x).sum() / 6) * np.eye(6)
    wanted = np.linalg.lstsq(np.vstack([x, weight]), np.vstack([y, weight @ w]), rcond=None)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def pruned(graph: Graph, images: np.ndarray) -> Graph:
    arrays = {name: array for layer in sparsify_layers(graph, images) for name, array in layer.arrays.items()}
    return replace(graph, parameters={**graph.parameters, **arrays})


def test_scores_of_other_images_are_closer_than_with_the_two_greatest() -> None:
    graph = random_graph(LENET5, bias=True)
    given, held_out = np.split(random_images(LENET5, 2 * COUNT), 2)
    layer, *later = sparsify_layers(graph, given)
    assert [each.name for each in (layer, *later)] == ["conv2", "fc1", "fc2"]
    assert all(0 < each.error < each.plain for each in (layer, *later))
    fitted = replace(
        graph, parameters={**graph.parameters, **{k: v for e in (layer, *later) for k, v in e.arrays.items()}}
    )
    w = graph.parameters["conv2"]
    plain = np.where(greatest_two(w.reshape(-1, 64)).reshape(w.shape), w, 0)
    assert is_two_of_four(layer.arrays["conv2"]) and is_two_of_four(plain)
    expected = graph.reference(held_out)
    alone = [replace(graph, parameters={**graph.parameters, **each}) for each in (layer.arrays, {"conv2": plain})]
    errors = [np.square(each.reference(held_out) - expected).sum() for each in (fitted, *alone)]
    assert 0 < errors[1] < 0.6 * errors[2] and errors[0] < errors[2]


def test_rounding_and_quantising_keep_the_zeros() -> None:
    images = random_images(LENET5, COUNT)
    sparse = pruned(random_graph(LENET5, bias=False), images)
    zeros = sparse.parameters["conv2"] == 0
    assert zeros.mean() == 0.5 and not list(sparsify_layers(sparse, images))
    rounded = {name: array for layer in round_layers(sparse, images) for name, array in layer.arrays.items()}
    assert not rounded["conv2"][zeros].any() and (rounded["conv2"] == rounded["conv2"].astype(np.float16)).all()
    quantised, error, plain = quantise_convolution(sparse, images)
    assert not quantised.filters[zeros].any() and is_two_of_four(quantised.filters) and 0 < error < plain
