"""Models that Keras builds and saves, in both formats: their labels are Keras' own, their logits within rounding.

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

from tests.support.keras_files import graph_of, scores_of  # noqa: E402

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore")  # Keras' own, of NumPy and of saving .h5
IMAGES = 1000
ROUNDING = 1e-5  # of the largest logit: float32 there and here, added in another order


def tutorial() -> Any:
    """Of Keras' first tutorial."""
    return keras.Sequential(
        [L.Input((28, 28)), L.Flatten(), L.Dense(128, activation="relu"), L.Dropout(0.2), L.Dense(10)]
    )


def lenet() -> Any:
    return keras.Sequential(
        [
            *(L.Input((28, 28, 1)), L.Conv2D(6, 5, padding="same", activation="tanh"), L.AveragePooling2D(2)),
            *(L.Conv2D(16, 5, activation="tanh"), L.AveragePooling2D(2), L.Flatten()),
            *(L.Dense(120, activation="tanh"), L.Dense(84, activation="tanh"), L.Dense(10, activation="softmax")),
        ]
    )


def scaled() -> Any:
    return keras.Sequential(
        [
            *(L.Input((28, 28, 1)), L.Rescaling(1 / 255), L.Conv2D(8, 3, activation="relu"), L.MaxPooling2D()),
            *(L.Conv2D(12, 3, activation="relu"), L.MaxPooling2D(), L.Flatten(), L.Dropout(0.5)),
            L.Dense(10, activation="softmax"),
        ]
    )


def shifted_and_padded() -> Any:
    """The padding is 0, black is -1."""
    return keras.Sequential(
        [
            *(L.Input((28, 28, 1)), L.Rescaling(1 / 127.5, offset=-1), L.Conv2D(8, 3, padding="same", use_bias=False)),
            *(L.BatchNormalization(), L.Activation("relu"), L.MaxPooling2D(), L.Conv2D(8, 5), L.BatchNormalization()),
            *(L.ReLU(), L.Flatten(), L.Dense(10)),
        ]
    )


def shifted() -> Any:
    return keras.Sequential(
        [
            *(L.Input((28, 28, 1)), L.Rescaling(1 / 127.5, offset=-1), L.Conv2D(6, 5, strides=2, activation="relu")),
            *(L.Flatten(), L.Dense(32, activation="sigmoid"), L.BatchNormalization(), L.Dense(10)),
        ]
    )


def normalised_behind_activations() -> Any:
    """With factors below zero, which a maximum does not let pass."""
    return keras.Sequential(
        [
            *(L.Input((28, 28, 1)), L.BatchNormalization(), L.Conv2D(6, 3, activation="relu"), L.BatchNormalization()),
            *(L.MaxPooling2D(), L.Conv2D(8, 3, padding="same", activation="relu"), L.BatchNormalization()),
            *(L.AveragePooling2D(2), L.SpatialDropout2D(0.1), L.Conv2D(8, 3, activation="relu")),
            *(L.BatchNormalization(scale=False), L.Flatten(), L.Dense(20, activation="relu")),
            *(L.BatchNormalization(center=False), L.Dense(10)),
        ]
    )


def functional() -> Any:
    inputs = keras.Input((784,))
    x = L.Reshape((28, 28, 1))(L.Rescaling(1 / 255)(inputs))
    x = L.Conv2D(8, 3, activation="relu")(x)
    x = L.BatchNormalization()(x)
    x = L.Conv2D(16, 3, strides=2, activation=L.ReLU())(x)
    x = L.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, L.Softmax()(L.Dense(10)(x)))


def colours() -> Any:
    """Three channels, padding that is larger behind, incomplete windows of a pooling."""
    return keras.Sequential(
        [
            *(L.Input((30, 30, 3)), L.Rescaling([1 / 255, 1 / 200, 1 / 100], [-0.5, -0.4, 0.1])),
            *(L.Conv2D(8, 3, strides=2, padding="same", activation="relu"), L.MaxPooling2D(2, padding="same")),
            *(L.Conv2D(8, 2, padding="same", activation="relu"), L.AveragePooling2D(3, padding="valid")),
            *(L.Flatten(), L.Dense(10, use_bias=False)),
        ]
    )


def zeros_around() -> Any:
    """Zeros of their own, poolings with padding on one side and on both, slopes, a log-softmax."""
    return keras.Sequential(
        [
            *(L.Input((28, 28, 1)), L.ZeroPadding2D(2), L.Conv2D(6, 5, strides=2), L.LeakyReLU(0.2)),
            *(L.MaxPooling2D(3, 1, padding="same"), L.ZeroPadding2D(((1, 0), (1, 0))), L.Conv2D(8, 4)),
            *(L.ReLU(negative_slope=0.1), L.AveragePooling2D(2, strides=1, padding="same"), L.ReLU()),
            *(L.ZeroPadding2D(1), L.MaxPooling2D(3, 2), L.Identity(), L.Flatten(), L.Dense(10, "log_softmax")),
        ]
    )


def adapted() -> Any:
    """Normalised by means of images; one slope for all maps."""
    norm = L.Normalization()
    norm.adapt(np.random.default_rng(1).random((50, 28, 28, 3), np.float32))
    slopes = L.PReLU(alpha_initializer=keras.initializers.Constant(0.25), shared_axes=[1, 2])
    return keras.Sequential([L.Input((28, 28, 3)), norm, L.Conv2D(8, 3), slopes, L.Flatten(), L.Dense(10)])


def nested() -> Any:
    augmented = keras.Sequential([L.Input((28, 28, 1)), L.RandomFlip("horizontal"), L.RandomRotation(0.1)])
    features = keras.Sequential([L.Input((28, 28, 1)), L.Conv2D(6, 5), L.BatchNormalization(), L.Activation("relu")])
    inputs = keras.Input((28, 28, 1))
    x = L.GlobalMaxPooling2D(keepdims=True)(L.Conv2D(12, 3)(L.MaxPooling2D(3, 2)(features(augmented(inputs)))))
    return keras.Model(inputs, L.Dense(10)(L.Flatten()(x)))


def features() -> Any:
    return keras.Sequential(
        [
            *(L.Input((784,)), L.Dense(64, activation="relu"), L.BatchNormalization(), L.GaussianNoise(0.1)),
            *(L.Dense(32), L.BatchNormalization(), L.Activation("tanh"), L.Dense(10, activation="softmax")),
        ]
    )


def pooled_first() -> Any:
    return keras.Sequential(
        [L.Input((28, 28, 1)), L.AveragePooling2D(2), L.Conv2D(8, 5, activation="relu"), L.Flatten(), L.Dense(10)]
    )


MODELS: tuple[Callable[[], Any], ...] = (
    *(tutorial, lenet, scaled, shifted_and_padded, shifted, normalised_behind_activations),
    *(functional, colours, nested, features, pooled_first, zeros_around, adapted),
)


def randomise(model: Any) -> None:
    """Give the model numbers as trained ones have: variances above zero, the others on both sides of it."""
    rng = np.random.default_rng(3)
    for weight in model.weights:
        name, shape = weight.path.rpartition("/")[2], tuple(weight.shape)
        if "seed" in weight.path or name == "alpha" or weight.path.startswith("normalization"):
            continue
        values = rng.standard_normal(shape)
        if name == "kernel":
            values *= 1.5 / np.sqrt(np.prod(shape[:-1]))
        weight.assign(np.abs(values) + 0.1 if name == "moving_variance" else values)


def dense_before_softmax(model: Any) -> tuple[Any, Any]:
    """The last layer with scores, and the model up to its scores before a softmax."""
    last = next(layer for layer in reversed(model.layers) if isinstance(layer, L.Dense))
    last.activation = keras.activations.linear
    return last, keras.Model(model.inputs, last.output) if model.layers[-1] is not last else model


@pytest.mark.parametrize("ending", ["keras", "h5"])
@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_keras_model_gives_keras_labels(build: Callable[[], Any], ending: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    model = build()
    randomise(model)
    height, width, channels = {3: (28, 28, 1), 2: (28, 28, 1)}.get(len(model.input_shape), model.input_shape[1:])
    coarse = np.random.default_rng(7).integers(0, 256, (IMAGES, 5, 5, channels), np.uint8)
    images = np.kron(coarse, np.ones((1, 7, 7, 1), np.uint8))[:, :height, :width]
    scales_itself = any(isinstance(layer, L.Rescaling) for layer in model.layers)
    x = (images * np.float32(1 if scales_itself else 1 / 255)).reshape(-1, *model.input_shape[1:]).astype(np.float32)

    activation = model.layers[-1].activation if isinstance(model.layers[-1], L.Dense) else None
    last, scores = dense_before_softmax(model)
    if last.use_bias:  # so that every label is the best for some images
        last.bias.assign(last.bias - keras.ops.mean(scores(x, training=False), axis=0))
    expected = np.asarray(keras.ops.convert_to_numpy(scores(x, training=False)))
    if activation is not None:
        last.activation = activation
    path = tmp_path / f"model.{ending}"
    model.save(path)

    ours = scores_of(graph_of(path), images)
    largest, labels = np.abs(expected).max(), ours.argmax(axis=1)
    best = np.sort(expected, axis=1)
    close = (best[:, -1] - best[:, -2] < 2 * ROUNDING * largest).sum()
    error = np.abs(ours - expected).max() / largest
    print(f"{build.__name__} {ending}: {error:.1e} of the largest logit, {close} near-ties, {len(set(labels))} labels")
    assert error < ROUNDING
    np.testing.assert_array_equal(labels, expected.argmax(axis=1))
    assert len(set(labels)) > 2
