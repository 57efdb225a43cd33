"""Test error compensation in rounding to float16 and in pruning to 2:4 sparsity."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from app.base.errors import UserError
from app.kernels.plain_problems import is_two_of_four
from app.kernels.problems import LinearProblem
from app.kernels.scaling import InexactError, float16_parts, scale_per_output
from app.layers import Argmax, AvgPool, Conv2d, Flatten, Linear, Relu
from app.network.definitions import LENET5, Network
from app.network.graph import Graph, build_graph
from app.network.pruning import fit_weights, keep_two_of_four, prune_filters, sparsify_layers
from app.network.reference import load_reference
from app.network.rounding import DAMPING, quantise_convolution, round_layers, round_with_compensation
from app.network.weights import load_weights, round_to_storage
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.networks_for_tests import (
    CONVOLVED,
    ENLARGED,
    FLAT,
    LATE,
    ODD,
    SMOOTH,
    network,
    random_graph,
    random_images,
)
from tests.support.sparsity import drawn_two_of_four

COUNT = 200


def round_graph(graph: Graph, images: np.ndarray) -> Graph:
    """Return the graph with all weights rounded with compensation on these images."""
    arrays = {name: array for layer in round_layers(graph, images) for name, array in layer.arrays.items()}
    assert arrays.keys() == graph.parameters.keys()
    return replace(graph, parameters=arrays)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("network", [ODD, FLAT, SMOOTH, ENLARGED, LATE, CONVOLVED], ids=lambda network: network.name)
def test_compensated_scores_are_closer_than_plainly_rounded_ones(network: Network, bias: bool) -> None:
    """The images are others than those of the compensation; scores are compared before a softmax."""
    graph = random_graph(network, bias=bias)
    given, held_out = np.split(random_images(network, 2 * COUNT), 2)
    ours, plain = round_graph(graph, given), replace(graph, parameters=round_to_storage(graph.parameters, "float16"))
    expected = graph.reference(held_out)
    errors = [np.sqrt(np.mean((each.reference(held_out) - expected) ** 2)) for each in (ours, plain)]
    assert 0 < errors[0] < 0.8 * errors[1]


def test_errors_of_each_layer_are_reported() -> None:
    graph = random_graph(ODD)
    images = random_images(ODD, COUNT)
    found = [*round_layers(graph, images)]
    assert [layer.name for layer in found] == ["conv1", "conv2", "fc1", "fc2"]
    assert all(0 < layer.error < layer.plain for layer in found)
    y = graph.input_of_step(1, images, np.float64)
    changed = replace(graph, parameters={**graph.parameters, **found[0].arrays}).input_of_step(1, images, np.float64)
    assert found[0].error == pytest.approx(np.linalg.norm(changed - y) / np.linalg.norm(y), rel=1e-6)


def test_rounded_weights_are_exact_and_reproducible() -> None:
    graph = random_graph(ODD)
    images = random_images(ODD, COUNT)
    first, second = (round_graph(graph, images).parameters for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], strict=True)
        np.testing.assert_array_equal(array, round_to_storage(first, "float16")[name], strict=True)
        assert array.dtype == np.float32 and array.shape == graph.parameters[name].shape
    inputs, outputs = graph.parameters["fc2"].shape
    problem = LinearProblem(inputs, outputs, dtype="float16x2", exact=True)
    assert len(float16_parts(problem, scale_per_output(problem, [first["fc2"], None])[0])) == 1
    with pytest.raises(InexactError):
        float16_parts(problem, scale_per_output(problem, [graph.parameters["fc2"], None])[0])


def test_float16_weights_stay_unchanged() -> None:
    """This includes inputs that are always zero. If all inputs are, other weights are rounded to the nearest."""
    rng = np.random.default_rng(3)
    w = rng.standard_normal((6, 4)).astype(np.float16).astype(np.float64)
    x = rng.standard_normal((50, 6)) * [1, 1, 0, 1, 0, 1]
    np.testing.assert_array_equal(round_with_compensation(w, x.T @ x), w)
    unreached = w + 1e-6
    np.testing.assert_array_equal(round_with_compensation(unreached, np.zeros((6, 6))), unreached.astype(np.float16))


def test_an_equal_input_compensates_the_error() -> None:
    """By hand: 2049.5 becomes 2050 in float16, so the weight of the equal input is reduced."""
    w = np.array([[2049.5], [1.0]])
    products = np.full((2, 2), 1e6)
    np.testing.assert_array_equal(round_with_compensation(w, products), [[2050.0], [np.float16(1 - 0.5 / 1.01)]])


def test_weights_beyond_float16_are_refused() -> None:
    graph = random_graph(FLAT)
    large = replace(graph, parameters={**graph.parameters, "fc2": graph.parameters["fc2"] * np.float32(1e6)})
    with pytest.raises(UserError, match="fc2 contains numbers beyond float16's range of 65,504: keep it as float32"):
        next(round_layers(large, random_images(FLAT, 2)))


def test_the_shipped_weights_of_lenet5_are_exact_in_float16() -> None:
    weights = load_weights()
    assert weights.storage == "float16" and "rounded to float16 with error compensation" in str(weights.recipe)
    assert load_reference(weights, LENET5) is not None
    nodes = plan(build_graph(LENET5, weights), "sm_90a", Choices("auto")).nodes
    assert [getattr(node.problem, "exact", False) for node in nodes] == [True, True]


FEW = 60
# lenet5 with smaller layers.
SMALL = network(
    "small",
    (1, 14, 14),
    *(Conv2d("conv1", 8, 3), Relu("relu1"), AvgPool("pool1", 2), Conv2d("conv2", 16, 3), Relu("relu2")),
    *(AvgPool("pool2", 2), Flatten("flatten"), Linear("fc1", 32), Relu("relu3"), Linear("fc2", 10), Argmax("argmax")),
)


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_is_two_of_four(dtype: type) -> None:
    rng = np.random.default_rng(1)
    filters: np.ndarray = np.sign(drawn_two_of_four(rng)).astype(dtype)
    assert is_two_of_four(filters)
    assert is_two_of_four(np.where(rng.random(filters.shape) < 0.5, filters, 0))  # groups with fewer weights are valid
    places = np.argwhere(filters == 0)
    for place in places[rng.integers(len(places), size=50)]:
        more = filters.copy()
        more[tuple(place)] = 1
        assert not is_two_of_four(more)


def test_sparsity_needs_groups_of_four_input_maps() -> None:
    zeros = np.zeros((5, 5, 32, 64), np.float32)
    assert is_two_of_four(zeros) and not is_two_of_four(zeros[:, :, :30]) and not is_two_of_four(zeros[:, :, :1])
    assert not is_two_of_four(zeros.reshape(-1, 64))  # a fully connected layer's
    across = zeros.copy()
    across[0, 0, 2:6, 0] = 1  # four adjacent weights in two groups
    assert is_two_of_four(across)


def test_pruning_removes_the_pair_of_least_error() -> None:
    """Every pair of a group is tried by least squares, while the other group keeps all weights."""
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


def test_weights_without_pruning_are_the_least_squares_fit() -> None:
    rng = np.random.default_rng(3)
    x, y, w = rng.standard_normal((30, 6)), rng.standard_normal((30, 4)), rng.standard_normal((6, 4))
    found = fit_weights(w, x.T @ x, x.T @ y, 0)
    weight = np.sqrt(DAMPING * np.square(x).sum() / 6) * np.eye(6)
    wanted = np.linalg.lstsq(np.vstack([x, weight]), np.vstack([y, weight @ w]), rcond=None)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def prune_with_fit(graph: Graph, images: np.ndarray) -> Graph:
    arrays = {name: array for layer in sparsify_layers(graph, images) for name, array in layer.arrays.items()}
    return replace(graph, parameters={**graph.parameters, **arrays})


def test_compensated_pruning_is_closer_than_keeping_the_greatest() -> None:
    graph = random_graph(SMALL, bias=True)
    given, held_out = np.split(random_images(SMALL, 2 * FEW), 2)
    layer, *later = sparsify_layers(graph, given)
    assert [each.name for each in (layer, *later)] == ["conv2", "fc1", "fc2"]
    assert all(0 < each.error < each.plain for each in (layer, *later))
    fitted = prune_with_fit(graph, given)
    w = graph.parameters["conv2"]
    plain = keep_two_of_four(w.reshape(-1, 16)).reshape(w.shape)
    assert is_two_of_four(layer.arrays["conv2"]) and is_two_of_four(plain)
    expected = graph.reference(held_out)
    alone = [replace(graph, parameters={**graph.parameters, **each}) for each in (layer.arrays, {"conv2": plain})]
    errors = [np.square(each.reference(held_out) - expected).sum() for each in (fitted, *alone)]
    assert 0 < errors[1] < 0.6 * errors[2] and errors[0] < errors[2]


def test_rounding_and_quantising_keep_the_zeros() -> None:
    images = random_images(SMALL, FEW)
    sparse = prune_with_fit(random_graph(SMALL, bias=False), images)
    zeros = sparse.parameters["conv2"] == 0
    assert zeros.mean() == 0.5 and not list(sparsify_layers(sparse, images))
    rounded = {name: array for layer in round_layers(sparse, images) for name, array in layer.arrays.items()}
    assert not rounded["conv2"][zeros].any() and (rounded["conv2"] == rounded["conv2"].astype(np.float16)).all()
    quantised, error, plain = quantise_convolution(sparse, images)
    assert not quantised.filters[zeros].any() and is_two_of_four(quantised.filters) and 0 < error < plain


def test_prune_filters_changes_only_sparsifiable_convolutions() -> None:
    graph = random_graph(LENET5)
    pruned = prune_filters(graph)
    assert is_two_of_four(pruned.parameters["conv2"]) and not is_two_of_four(graph.parameters["conv2"])
    changed = pruned.parameters["conv2"] != graph.parameters["conv2"]
    assert 0.49 < changed.mean() <= 0.5 and not pruned.parameters["conv2"][changed].any()
    others = graph.parameters.keys() - {"conv2"}
    assert all(pruned.parameters[name] is graph.parameters[name] for name in others)
