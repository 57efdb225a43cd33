"""Compare imports with Keras itself, which reads and saves the models of ``test_keras`` and larger ones: equal scores.

Needs the extra keras: pip install -e '.[keras]'.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BACKEND = next((name for name in ("torch", "jax") if find_spec(name)), "")
if not find_spec("keras") or not BACKEND:
    pytest.skip("keras, or both torch and jax, are not installed", allow_module_level=True)
os.environ.setdefault("KERAS_BACKEND", BACKEND)
keras = pytest.importorskip("keras")

from tests.interchange.test_keras import MODELS, reads_pixels  # noqa: E402
from tests.support.foreign_files import imported  # noqa: E402
from tests.support.keras_files import configuration, keras_zip, scores_of  # noqa: E402

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore")  # Keras' warnings about NumPy and .h5 files
SOFTMAX = (keras.activations.softmax, keras.activations.log_softmax)
IMAGES = 1000
ROUNDING = 1e-5  # allowed difference ÷ largest logit: both compute in float32, in another order


def build_functional_model() -> Any:
    inputs = keras.Input((784,))
    x = L.Reshape((28, 28, 1))(L.Rescaling(1 / 255)(inputs))
    x = L.SpatialDropout2D(0.1)(L.Conv2D(8, 3, activation="relu")(x))
    x = L.BatchNormalization()(x)
    x = L.Conv2D(16, 3, strides=2, activation=L.ReLU())(x)
    x = L.GaussianNoise(0.1)(L.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, L.Softmax()(L.Dense(10)(x)))


def build_nested_model() -> Any:
    augmented = keras.Sequential([L.Input((28, 28, 1)), L.RandomFlip("horizontal"), L.RandomRotation(0.1)])
    features = keras.Sequential([L.Input((28, 28, 1)), L.Conv2D(6, 5), L.BatchNormalization(), L.Activation("relu")])
    inputs = keras.Input((28, 28, 1))
    x = L.GlobalMaxPooling2D(keepdims=True)(L.Conv2D(12, 3)(L.MaxPooling2D(3, 2)(features(augmented(inputs)))))
    return keras.Model(inputs, L.Dense(10)(L.Flatten()(x)))


def randomise_weights(model: Any) -> None:
    """Give the model's weights random values: positive variances, and others of both signs."""
    rng = np.random.default_rng(3)
    for weight in model.weights:
        name, shape = weight.path.rpartition("/")[2], tuple(weight.shape)
        if "seed" in weight.path:
            continue
        values = rng.standard_normal(shape)
        if name == "kernel":
            values *= 1.5 / np.sqrt(np.prod(shape[:-1]))
        weight.assign(np.abs(values) + 0.1 if name == "moving_variance" else values)


def remove_softmax(model: Any) -> Any:
    """Return a model that ends with the scores before the softmax; it may change the given model's last layer."""
    last = model.layers[-1]
    if isinstance(last, L.Softmax) or (isinstance(last, L.Activation) and last.activation in SOFTMAX):
        return keras.Model(model.inputs, model.layers[-2].output)
    if isinstance(last, L.Dense) and last.activation in SOFTMAX:
        last.activation = keras.activations.linear
    return model


def check_imported_scores(model: Any, path: Path, scale: float) -> None:
    """Save the model, import it, and check that the scores are Keras'. scale: of the pixels that the model reads."""
    model.save(path)
    _, graph = imported(path)
    channels, height, width = graph.network.input_shape
    coarse = np.random.default_rng(7).integers(0, 256, (IMAGES, 5, 5, channels), np.uint8)
    images = np.kron(coarse, np.ones((1, 7, 7, 1), np.uint8))[:, :height, :width]
    x = (images * np.float32(scale)).reshape(-1, *model.input_shape[1:]).astype(np.float32)
    expected = np.asarray(keras.ops.convert_to_numpy(remove_softmax(model)(x, training=False)))
    ours = scores_of(graph, images)
    allowed = ROUNDING * np.abs(expected).max()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=allowed)
    assert np.ptp(expected, axis=0).max() > 1000 * allowed  # the images differ
    best = np.sort(expected, axis=1)
    clear = best[:, -1] - best[:, -2] > 2 * allowed
    assert (ours.argmax(axis=1) == expected.argmax(axis=1))[clear].all() and clear.mean() > 0.9


@pytest.mark.parametrize("ending", ["keras", "h5"])
@pytest.mark.parametrize("case", MODELS)
def test_keras_and_import_read_our_files_alike(case: str, ending: str, tmp_path: Path) -> None:
    shape, model = MODELS[case]
    (tmp_path / "ours.keras").write_bytes(keras_zip(model, configuration(model, shape)))
    found = keras.saving.load_model(tmp_path / "ours.keras")
    check_imported_scores(found, tmp_path / f"model.{ending}", 1 if reads_pixels(model) else 1 / 255)


@pytest.mark.parametrize("ending", ["keras", "h5"])
@pytest.mark.parametrize(("build", "scale"), [(build_functional_model, 1), (build_nested_model, 1 / 255)])
def test_import_gives_the_scores_of_keras(build: Callable[[], Any], scale: float, ending: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    model = build()
    randomise_weights(model)
    check_imported_scores(model, tmp_path / f"model.{ending}", scale)
