"""Test gradients of every layer and of whole networks against central differences in float64."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from app.base.errors import UserError
from app.layers import Argmax, Flatten, Layer, Linear, MaxPool, Relu, Shape, Softmax
from app.network.definitions import NETWORKS, Network
from app.training.gradients import GRADIENTS, Arrays, layer_forward
from app.training.model import Model, add_distillation_loss, add_l2_gradient, cross_entropy, make_training_model
from tests.layers.test_layers import CONVS, OTHERS, PADDED, POOLINGS
from tests.support.networks_for_tests import ODD, ORDERS, OVERHANG, POOLED, SMOOTH, random_images

STEP = 1e-5
LAYERS: list[tuple[Layer, Shape]] = [
    (layer, shape) for layer, shape in (*CONVS[::5], *PADDED[::9], *POOLINGS[::13], *OTHERS) if type(layer) in GRADIENTS
]
EVERY = ("conv1", "conv2", "fc1", "fc2")


def layer_id(case: int) -> str | None:
    """Return the kind of layer number ``case`` as a test id; None for other parameters of a test."""
    return None if isinstance(case, bool) else LAYERS[case][0].kind


def central_differences(
    f: Callable[[], float], array: np.ndarray, places: np.ndarray | None = None, step: float = STEP
) -> np.ndarray:
    """Return central differences of f by elements of ``array``, which f reads. places: flat indices (default: all)."""
    flat = array.reshape(-1)
    assert np.shares_memory(flat, array)
    slopes = []
    for place in range(flat.size) if places is None else places:
        before = flat[place]
        flat[place] = before + step
        above = f()
        flat[place] = before - step
        below = f()
        flat[place] = before
        slopes.append((above - below) / (2 * step))
    return np.array(slopes)


def random_parameters(layer: Layer, shape: tuple[int, ...], bias: bool, rng: np.random.Generator) -> Arrays:
    names = layer.parameter_shapes(shape).items()
    return {name: rng.standard_normal(wanted) for name, wanted in names if bias or not name.endswith("_bias")}


@pytest.mark.parametrize(
    ("case", "bias"),
    [(at, bias) for at, (layer, shape) in enumerate(LAYERS) for bias in {False, bool(layer.parameter_shapes(shape))}],
    ids=layer_id,
)
def test_layer_gradients(case: int, bias: bool) -> None:
    layer, shape = LAYERS[case]
    rng = np.random.default_rng(case)
    x = rng.standard_normal((2, *shape))
    parameters = random_parameters(layer, shape, bias, rng)
    given = x.copy()
    y = layer_forward(layer, x, parameters)
    np.testing.assert_array_equal(x, given)  # unchanged: the layer before may keep it
    np.testing.assert_array_equal(y, layer.reference(x.copy(), parameters))
    weight = rng.standard_normal(y.shape)  # of each output in the differentiated sum
    dx, gradients = GRADIENTS[type(layer)](layer, x, y, weight, parameters, True)
    assert dx is not None and gradients.keys() == parameters.keys()

    def weighted_sum() -> float:
        return float((layer.reference(x.copy(), parameters) * weight).sum())

    np.testing.assert_allclose(dx.reshape(-1), central_differences(weighted_sum, x), rtol=1e-6, atol=1e-7)
    for name, array in parameters.items():
        expected = central_differences(weighted_sum, array)
        np.testing.assert_allclose(gradients[name].ravel(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", range(len(LAYERS)), ids=layer_id)
def test_float_types_and_memory_orders(case: int, dtype: type) -> None:
    """Results keep the float type, and do not depend on the memory order of the input."""
    layer, shape = LAYERS[case]
    rng = np.random.default_rng(case)
    x: np.ndarray = rng.standard_normal((2, *shape)).astype(dtype)
    parameters: Arrays = {n: a.astype(dtype) for n, a in random_parameters(layer, shape, True, rng).items()}
    results = []
    for order in "CF":
        given: np.ndarray = np.asarray(x, order=order)  # type: ignore[call-overload]
        y = layer_forward(layer, given, parameters)
        dx, own = GRADIENTS[type(layer)](layer, given, y, np.ones_like(y), parameters, True)
        assert dx is not None and dx.shape == x.shape
        results.append((y, dx, *(own[name] for name in sorted(own))))
    for one, other in zip(*results, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(one, other, rtol=1e-4 if dtype == np.float32 else 1e-12, atol=1e-6)


def test_equal_maxima_give_the_gradient_to_the_first() -> None:
    layer = MaxPool("l", window=2)
    x = np.zeros((1, 1, 2, 4))
    dx, _ = GRADIENTS[MaxPool](layer, x, layer_forward(layer, x, {}), np.ones((1, 1, 1, 2)), {}, True)
    assert dx is not None and dx.tolist() == [[[[1, 0, 1, 0], [0, 0, 0, 0]]]]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing: float) -> None:
    rng = np.random.default_rng(1)
    logits, labels = rng.standard_normal((5, 7)) * 3, rng.integers(0, 7, 5)
    loss, slope = cross_entropy(logits, labels, smoothing, 9)
    shares = np.log(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
    target = np.eye(7)[labels] * (1 - smoothing) + smoothing / 7
    assert loss == pytest.approx(-(shares * target).sum() / 9)
    found = central_differences(lambda: cross_entropy(logits, labels, smoothing, 9)[0], logits)
    np.testing.assert_allclose(slope.ravel(), found, rtol=1e-6, atol=1e-9)
    assert cross_entropy(logits + 1e6, labels, smoothing, 9)[0] == pytest.approx(loss)  # exp does not overflow


def test_distillation_loss() -> None:
    """Distillation keeps a tenth of the former loss; a teacher with the same scores adds nothing."""
    rng = np.random.default_rng(1)
    logits, teacher = rng.standard_normal((2, 5, 7)) * 3
    former = rng.standard_normal((5, 7))
    shares, wanted = (np.exp(x / 2) / np.exp(x / 2).sum(axis=1, keepdims=True) for x in (logits, teacher))
    loss, slope = add_distillation_loss(3.0, former, logits, teacher, 9)
    assert loss == pytest.approx(0.3 + 0.9 * 4 * (wanted * np.log(wanted / shares)).sum() / 9)
    found = central_differences(lambda: add_distillation_loss(3.0, former, logits, teacher, 9)[0], logits)
    np.testing.assert_allclose(slope.ravel() - 0.1 * former.ravel(), found, rtol=1e-6, atol=1e-9)
    assert add_distillation_loss(3.0, former, logits, logits + 1e6, 9)[0] == pytest.approx(0.3)  # exp does not overflow


def test_l2_loss_and_gradient() -> None:
    parameters = {"fc": np.array([[1.0, -2.0]]), "fc_bias": np.array([5.0, 5.0])}
    gradients = {name: np.ones_like(array) for name, array in parameters.items()}
    assert add_l2_gradient(parameters, gradients, 0.1) == pytest.approx(0.25)
    np.testing.assert_allclose(gradients["fc"], [[1.1, 0.8]])
    np.testing.assert_array_equal(gradients["fc_bias"], [1, 1])


def initial_parameters_in_float64(model: Model) -> Arrays:
    return {
        name: array.astype(np.float64) + (0.1 if name.endswith("_bias") else 0)
        for name, array in model.initial_parameters(3).items()
    }


def random_masks(name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    return np.where(np.random.default_rng(len(name)).random(shape) < 0.5, 2.0, 0.0) if name.startswith("fc") else None


@pytest.mark.parametrize("network", [ODD, POOLED, SMOOTH, OVERHANG, *ORDERS, *NETWORKS.values()])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_whole_networks(network: Network, masked: bool) -> None:
    if masked and network.name in ("fa19", "k7", "minidnn86"):
        return  # slow, with no other layers than the rest
    model = make_training_model(network, EVERY)
    rng = np.random.default_rng(5)
    images, labels = random_images(network, 1), rng.integers(0, model.classes, 1)
    parameters = initial_parameters_in_float64(model)
    options = {"smoothing": 0.1, "total": 2, "masks": random_masks if masked else None}

    def compute_loss() -> float:
        if masked:
            return model.compute_gradients(parameters, images, labels, **options)[0]  # type: ignore[arg-type]
        return cross_entropy(model.compute_logits(parameters, images), labels, 0.1, 2)[0]  # the forward pass alone

    loss, _, gradients = model.compute_gradients(parameters, images, labels, **options)  # type: ignore[arg-type]
    assert loss == compute_loss() and gradients.keys() == parameters.keys()
    for name, array in parameters.items():
        places = rng.choice(array.size, min(array.size, 2), replace=False)
        expected = central_differences(compute_loss, array, places, step=1e-7)  # small: some units are near a kink
        np.testing.assert_allclose(gradients[name].reshape(-1)[places], expected, rtol=1e-3, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("network", [ODD, SMOOTH, NETWORKS["mlp"]])
def test_gradients_of_parts_of_a_batch_add_up(network: Network) -> None:
    model = make_training_model(network, EVERY)
    images, labels = random_images(network, 7), np.arange(7) % 3
    parameters = initial_parameters_in_float64(model)
    whole = model.compute_gradients(parameters, images, labels, smoothing=0.05, total=7)
    cuts = [
        model.compute_gradients(parameters, images[a:b], labels[a:b], smoothing=0.05, total=7)
        for a, b in pairwise((0, 2, 3, 7))
    ]
    assert whole[0] == pytest.approx(sum(cut[0] for cut in cuts)) and whole[1] == sum(cut[1] for cut in cuts)
    for name, gradient in whole[2].items():
        np.testing.assert_allclose(sum(cut[2][name] for cut in cuts), gradient, rtol=1e-9, atol=1e-12)


def test_layers_without_a_gradient() -> None:
    """Before the first trained layer they get bytes and run once; behind it they are an error."""
    with pytest.raises(UserError, match=r"network bad cannot be trained: layer s \(softmax\) has no gradient"):
        make_training_model(Network("bad", "", (4,), (Linear("a", 3), Softmax("s"), Linear("b", 2), Argmax("m"))), ())
    with pytest.raises(UserError, match="network bad cannot be trained: it needs weights"):
        make_training_model(Network("bad", "", (4,), (Relu("r"), Argmax("m"))), ())

    class Halved(Flatten):
        def reference(self, x: np.ndarray, parameters: object) -> np.ndarray:
            assert x.dtype == np.uint8
            return super().reference(x // 2, {})

    model = make_training_model(Network("seen", "", (1, 2, 2), (Halved("h"), Linear("fc", 3), Argmax("m"))), ())
    assert [layer.name for layer in model.front] == ["h"]
    images = np.full((2, 1, 2, 2), 102, np.uint8)
    x = model.prepare_inputs(images, np.dtype(np.float64))
    np.testing.assert_allclose(x, 51 / 255)
    assert model.compute_gradients(model.initial_parameters(1), images, np.array([0, 1]), smoothing=0, total=2)[2][
        "fc"
    ].shape == (4, 3)
