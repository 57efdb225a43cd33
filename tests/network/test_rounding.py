"""Rounding to float16 with error compensation: exact in float16, closer than plain rounding, and steady."""

from dataclasses import replace

import numpy as np
import pytest

from app.base.errors import UserError
from app.kernels.fused.scaling import InexactError, float16_parts, scale_per_output
from app.kernels.problems import LinearProblem
from app.network.definitions import LENET5, Network
from app.network.graph import Graph, build_graph
from app.network.reference import load_reference
from app.network.rounding import round_layers, round_with_compensation
from app.network.weights import load_weights, round_to_storage
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.networks_for_tests import CONVOLVED, ENLARGED, FLAT, LATE, ODD, SMOOTH, random_graph, random_images

COUNT = 200


def compensating(graph: Graph, images: np.ndarray) -> Graph:
    """The graph with all weights rounded on these images."""
    arrays = {name: array for layer in round_layers(graph, images) for name, array in layer.arrays.items()}
    assert arrays.keys() == graph.parameters.keys()
    return replace(graph, parameters=arrays)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("network", [ODD, FLAT, SMOOTH, ENLARGED, LATE, CONVOLVED], ids=lambda network: network.name)
def test_scores_of_other_images_are_closer_than_by_plain_rounding(network: Network, bias: bool) -> None:
    """Strides, enlarged images, several channels, with and without biases: the scores before a softmax."""
    graph = random_graph(network, bias=bias)
    given, held_out = np.split(random_images(network, 2 * COUNT), 2)
    ours, plain = compensating(graph, given), replace(graph, parameters=round_to_storage(graph.parameters, "float16"))
    expected = graph.reference(held_out)
    errors = [np.sqrt(np.mean((each.reference(held_out) - expected) ** 2)) for each in (ours, plain)]
    assert 0 < errors[0] < 0.8 * errors[1]


def test_each_layer_states_its_errors() -> None:
    graph = random_graph(ODD)
    images = random_images(ODD, COUNT)
    found = [*round_layers(graph, images)]
    assert [layer.name for layer in found] == ["conv1", "conv2", "fc1", "fc2"]
    assert all(0 < layer.error < layer.plain for layer in found)
    y = graph.input_of_step(1, images, np.float64)
    changed = replace(graph, parameters={**graph.parameters, **found[0].arrays}).input_of_step(1, images, np.float64)
    assert found[0].error == pytest.approx(np.linalg.norm(changed - y) / np.linalg.norm(y), rel=1e-6)


def test_rounded_weights_are_exact_in_float16_and_the_same_every_time() -> None:
    graph = random_graph(ODD)
    images = random_images(ODD, COUNT)
    first, second = (compensating(graph, images).parameters for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], strict=True)
        np.testing.assert_array_equal(array, round_to_storage(first, "float16")[name], strict=True)
        assert array.dtype == np.float32 and array.shape == graph.parameters[name].shape
    inputs, outputs = graph.parameters["fc2"].shape
    problem = LinearProblem(inputs, outputs, dtype="float16x2", exact=True)
    assert len(float16_parts(problem, scale_per_output(problem, [first["fc2"], None])[0])) == 1
    with pytest.raises(InexactError):
        float16_parts(problem, scale_per_output(problem, [graph.parameters["fc2"], None])[0])


def test_numbers_that_float16_holds_stay() -> None:
    """Also the inputs that no image reaches, and where no input ever differs from zero."""
    rng = np.random.default_rng(3)
    w = rng.standard_normal((6, 4)).astype(np.float16).astype(np.float64)
    x = rng.standard_normal((50, 6)) * [1, 1, 0, 1, 0, 1]
    np.testing.assert_array_equal(round_with_compensation(w, x.T @ x), w)
    unreached = w + 1e-6
    np.testing.assert_array_equal(round_with_compensation(unreached, np.zeros((6, 6))), unreached.astype(np.float16))


def test_two_equal_inputs_share_their_error() -> None:
    """By hand: float16 holds 2048 and 2050; what 2049.5 loses by becoming 2050, its twin makes up for."""
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
