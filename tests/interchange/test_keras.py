"""Test the import of Keras' files: the networks give the scores that NumPy computes layer by layer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.interchange.source import ImportOptions
from app.layers import Conv2d
from tests.support.foreign_files import imported
from tests.support.keras_files import Model, computed, configuration, functional, hdf5, keras_hdf5, keras_zip, scores_of

RNG = np.random.default_rng(8)
SIDE = 9


def conv(size: int, channels: int, maps: int, bias: bool = True, **settings: Any) -> Any:
    arrays = {"kernel": (RNG.normal(size=(size, size, channels, maps)) / size).astype(np.float32)}
    arrays |= {"bias": RNG.normal(size=maps).astype(np.float32)} if bias else {}
    about = {"filters": maps, "kernel_size": [size, size], "use_bias": bias}
    return "Conv2D", {**about, "kernel_initializer": {"class_name": "Zeros"}, **settings}, arrays


def dense(inputs: int, units: int, **settings: Any) -> Any:
    arrays = {"kernel": RNG.normal(size=(inputs, units)) / np.sqrt(inputs), "bias": RNG.normal(size=units)}
    return "Dense", {"units": units, **settings}, {role: one.astype(np.float32) for role, one in arrays.items()}


def norm(channels: int, *without: str) -> Any:
    """Return a batch normalisation whose factors have both signs. without: roles of arrays that it lacks."""
    roles = [role for role in ("gamma", "beta", "moving_mean", "moving_variance") if role not in without]
    arrays = {role: RNG.normal(size=channels).astype(np.float32) for role in roles}
    arrays["moving_variance"] = np.abs(arrays["moving_variance"]) + np.float32(0.5)
    if "gamma" in roles:
        arrays["gamma"] = 2 * np.sign(arrays["gamma"]) + arrays["gamma"]
    has = {"scale": "gamma" not in without, "center": "beta" not in without}
    return "BatchNormalization", {"axis": -1, "epsilon": 0.01, "momentum": 0.9, **has}, arrays


def bare(kind: str, **settings: Any) -> Any:
    """Return a Keras layer without arrays."""
    return kind, settings, {}


GREY, COLOUR = (SIDE, SIDE, 1), (SIDE, SIDE, 3)
FLATTEN, RELU, ZEROS, MAXIMUM = map(bare, ("Flatten", "ReLU", "ZeroPadding2D", "MaxPooling2D"))
HALVED = bare("AveragePooling2D", pool_size=2)
SHIFTED = bare("Rescaling", scale=1 / 127.5, offset=-1)
SCALED = bare("Rescaling", scale=[0.01, 0.02, -0.01], offset=[0.1, 0, 1])
STATISTICS = {"mean": np.array([100, 120, 130], np.float32), "variance": np.array([4000, 5000, 6000], np.float32)}
ADAPTED: Any = ("Normalization", {"axis": [-1], "mean": None, "variance": None}, {**STATISTICS, "count": np.array(9)})
MODELS: dict[str, tuple[tuple[int, ...], Model]] = {
    "a tutorial's": (GREY[:2], [FLATTEN, dense(81, 12, activation="relu"), bare("Dropout", rate=0.2), dense(12, 4)]),
    "convolutions": (
        GREY,
        [
            *(bare("Rescaling", scale=1 / 255, offset=0), conv(3, 1, 4, activation="relu"), MAXIMUM),
            *(conv(2, 4, 5, False), bare("Activation", activation="tanh"), FLATTEN),
            dense(20, 4, activation="softmax"),
        ],
    ),
    "shifted pixels": (GREY, [SHIFTED, conv(4, 1, 3), FLATTEN, dense(108, 4)]),
    "shifted pixels, padded": (GREY, [SHIFTED, conv(3, 1, 3, padding="same"), FLATTEN, dense(243, 4)]),
    "scaled channels": (COLOUR, [SCALED, conv(3, 3, 2), FLATTEN, dense(98, 4)]),
    "more padding behind": (
        (SIDE + 1, SIDE + 1, 1),
        [conv(3, 1, 3, strides=2, padding="same"), conv(2, 3, 2, padding="same"), FLATTEN, dense(50, 4)],
    ),
    "incomplete windows": (
        GREY,
        [
            *(conv(1, 1, 2), bare("AveragePooling2D", pool_size=2, padding="same")),
            *(bare("MaxPooling2D", padding="same"), FLATTEN, dense(18, 4)),
        ],
    ),
    "normalised before": (
        GREY,
        [conv(3, 1, 3, False), norm(3), RELU, FLATTEN, dense(147, 9), norm(9, "gamma"), dense(9, 4)],
    ),
    "slopes": (
        GREY,
        [
            *(conv(3, 1, 3), norm(3), bare("LeakyReLU", negative_slope=0.1), MAXIMUM),
            *(conv(2, 3, 4, activation="leaky_relu"), bare("LeakyReLU", alpha=0.5), FLATTEN, dense(16, 6)),
            *(bare("ReLU", negative_slope=0.25), dense(6, 4), bare("LeakyReLU")),
        ],
    ),
    "normalised behind": (
        GREY,
        [
            *(norm(1), conv(3, 1, 3, activation="relu"), norm(3), MAXIMUM, conv(2, 3, 2), norm(2, "beta"), HALVED),
            *(FLATTEN, dense(2, 9, activation="tanh"), norm(9), dense(9, 4, activation="tanh"), norm(4)),
        ],
    ),
    "normalised behind, padded": (
        GREY,
        [conv(3, 1, 3, activation="relu"), norm(3), conv(3, 3, 2, padding="same"), FLATTEN, dense(98, 4)],
    ),
    "zeros around": (
        GREY,
        [
            *(SHIFTED, bare("ZeroPadding2D", padding=[[2, 1], [2, 1]]), conv(3, 1, 3, strides=2), RELU),
            *(bare("ZeroPadding2D", padding=1), bare("MaxPooling2D", pool_size=3, strides=1), ZEROS),
            *(bare("AveragePooling2D", pool_size=2, strides=3), bare("Identity"), ZEROS),
            *(conv(2, 3, 2, padding="same"), FLATTEN, dense(32, 4)),
        ],
    ),
    "zeros around what is shifted": (
        GREY,
        [conv(3, 1, 3, activation="relu"), norm(3), ZEROS, HALVED, conv(2, 3, 4), FLATTEN, dense(36, 4)],
    ),
    "normalised by numbers": (
        COLOUR,
        [
            *(bare("Normalization", axis=[-1], mean=[0.4, 0.5, 0.6], variance=[0.1, 0.2, 0.3]), conv(3, 3, 2)),
            *(("PReLU", {"shared_axes": [1, 2]}, {"alpha": np.full((1, 1, 2), 0.25, np.float32)}), FLATTEN),
            *(dense(98, 4), bare("Activation", activation="log_softmax")),
        ],
    ),
    "normalised by its images": (COLOUR, [ADAPTED, conv(3, 3, 2, padding="same"), FLATTEN, dense(162, 4)]),
    "padded poolings": (
        GREY,
        [
            *(conv(2, 1, 3), bare("MaxPooling2D", pool_size=[3, 3], strides=[1, 1], padding="same")),
            *(bare("AveragePooling2D", pool_size=4, strides=2, padding="same"), RELU),
            *(bare("AveragePooling2D", pool_size=2, strides=1, padding="same"), bare("MaxPooling2D", strides=2)),
            *(FLATTEN, dense(12, 4)),
        ],
    ),
    "averages of maps": (
        GREY,
        [conv(3, 1, 3), norm(3), RELU, bare("GlobalAveragePooling2D"), dense(3, 4), bare("Softmax")],
    ),
    "features": ((SIDE**2,), [dense(81, 6, activation="relu"), norm(6), dense(6, 4)]),
    "features made images": (
        (SIDE**2,),
        [bare("Reshape", target_shape=[SIDE, -1, 1]), conv(3, 1, 2), FLATTEN, dense(98, 4)],
    ),
    "weights do not come first": (GREY, [MAXIMUM, RELU, FLATTEN, dense(16, 4)]),
}


def reads_pixels(model: Model) -> bool:
    """Return whether the model reads pixels from 0 to 255, instead of from 0 to 1."""
    return any(kind == "Rescaling" for kind, *_ in model) or ADAPTED in model


# One format tests functional models, the other Sequential ones.
WRITERS: dict[str, Callable[[Model, Any], bytes]] = {
    "model.keras": lambda model, shape: keras_zip(model, functional(model, shape)),
    "model.h5": lambda model, shape: keras_hdf5(model, configuration(model, shape)),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("case", MODELS)
def test_imported_models_give_the_scores_of_their_layers(case: str, name: str, tmp_path: Path) -> None:
    shape, model = MODELS[case]
    (tmp_path / name).write_bytes(WRITERS[name](model, shape))
    _, graph = imported(tmp_path / name, ImportOptions(name="model"))
    size = SIDE + 1 if case == "more padding behind" else SIDE
    images = np.random.default_rng(1).integers(
        0, 256, (40, size, size, 3 if len(shape) == 3 and shape[2] == 3 else 1), np.uint8
    )
    read = [("Reshape", {"target_shape": shape}, {}), *model]
    expected = computed([*([] if reads_pixels(model) else [bare("Rescaling", scale=1 / 255)]), *read], images)
    np.testing.assert_allclose(scores_of(graph, images), expected, rtol=0, atol=3e-6 * np.abs(expected).max())
    assert np.ptp(expected, axis=0).max() > 0.01 * np.abs(expected).max()  # the images differ


def test_a_model_of_any_image_size_needs_the_option(tmp_path: Path) -> None:
    _, model = MODELS["averages of maps"]
    path = tmp_path / "model.keras"
    path.write_bytes(keras_zip(model, configuration(model, (None, None, 1))))
    assert imported(path, ImportOptions(size=12))[1].network.input_shape == (1, 12, 12)
    with pytest.raises(UserError, match="leaves the size of its images open; give --size"):
        imported(path)


def test_the_command_reports_what_it_folded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape, model = MODELS["shifted pixels, padded"]
    Path("clothes.keras").write_bytes(keras_zip(model, configuration(model, shape)))
    assert main(["import", "clothes.keras", "--out", "clothes.h5", "--json", "report.json"]) == 0
    report = json.loads(Path("report.json").read_text())
    assert (report["network"], report["format"], report["pixel_scale"]) == ("clothes", "Keras model", 1 / 127.5)
    assert report["notes"] == [
        "n0 (Rescaling) is the scale of pixels, and part of the next layer",
        "a layer with the scale and offset of each channel is put before n1 (Conv2D)",
    ]
    assert [one["name_there"] for one in report["arrays"]][2:4] == ["layers/conv2d/vars/0", "layers/conv2d/vars/1"]
    assert "layer by layer as Keras has them" in capsys.readouterr().out


def test_a_shift_without_padding_needs_no_extra_layer(tmp_path: Path) -> None:
    shape, model = MODELS["shifted pixels"]
    (tmp_path / "model.keras").write_bytes(keras_zip(model, configuration(model, shape)))
    layers = imported(tmp_path / "model.keras")[0].network.layers
    assert sum(isinstance(layer, Conv2d) for layer in layers) == 1


def test_files_of_keras_2_are_read(tmp_path: Path) -> None:
    """TensorFlow 2 wrote ``batch_input_shape`` in the first layer, ``kernel:0``, ``Model`` and lists for nodes."""
    shape, model = MODELS["convolutions"]
    (tmp_path / "new.h5").write_bytes(keras_hdf5(model, configuration(model, shape)))
    arrays = {
        f"model_weights/n{at}/n{at}/{role}:0": one for at, (*_, own) in enumerate(model) for role, one in own.items()
    }
    sequential, graph = configuration(model, shape), functional(model, shape)
    layers = sequential["config"]["layers"]
    del layers[0]
    layers[0]["config"]["batch_input_shape"] = [None, *shape]
    graph["class_name"] = "Model"
    nodes = graph["config"]["layers"]
    nodes[0]["config"]["batch_input_shape"] = nodes[0]["config"].pop("batch_shape")
    for at in range(1, len(nodes)):
        nodes[at]["inbound_nodes"] = [[[nodes[at - 1]["name"], 0, 0, {}]]]
    _, expected = imported(tmp_path / "new.h5", ImportOptions(name="one"))
    for config in (sequential, graph):
        (tmp_path / "old.h5").write_bytes(hdf5(arrays, {"model_config": json.dumps(config), "keras_version": "2.15.0"}))
        _, found = imported(tmp_path / "old.h5", ImportOptions(name="one"))
        assert found.network == expected.network
        np.testing.assert_equal(dict(found.parameters), dict(expected.parameters))


def test_a_mean_that_depends_on_the_backend_has_a_note(tmp_path: Path) -> None:
    """At the border, PyTorch repeats pixels and other backends omit them: both are equal in windows of 2 x 2."""
    for window, side in ((2, 7), (3, 8)):
        pooling = bare("AveragePooling2D", pool_size=window, strides=2, padding="same")
        model = [conv(1, 1, 2), pooling, FLATTEN, dense(32, 4)]
        (tmp_path / "model.keras").write_bytes(keras_zip(model, configuration(model, (side, side, 1))))
        source, _ = imported(tmp_path / "model.keras")
        assert any("n1 crosses the border" in note for note in source.notes) == (window == 3)
