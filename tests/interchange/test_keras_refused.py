"""Keras' files that hold what this program has no layer for: one line that names the layer, nothing is run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.interchange.test_keras import FLATTEN, conv, dense, norm, plain
from tests.interchange.test_keras_bad import SHAPE, refused
from tests.support.keras_files import Model, configuration, keras_hdf5, keras_zip

LAYERS: dict[str, tuple[Any, str]] = {
    "code": (plain("Lambda", function={"class_name": "__lambda__", "config": {"code": "4wEA"}}), "Lambda. cannot"),
    "another layer": (plain("Attention"), r"layer 'n0' \(Attention\) cannot be imported; known are Activation, "),
    "a function of one's own": (
        plain("Activation", activation={"module": "builtins", "class_name": "function", "config": "Custom>mine"}),
        "has the activation 'Custom>mine'; known are linear, relu",
    ),
    "another function": (conv(3, 1, 2, activation="gelu"), r"layer 'n0' \(Conv2D\) has the activation 'gelu'"),
    "channels first": (conv(3, 1, 2, data_format="channels_first"), "has data_format 'channels_first'"),
    "groups": (conv(3, 1, 2, groups=2), "has groups 2; only 1"),
    "a dilation": (conv(3, 1, 2, dilation_rate=[2, 2]), "has a dilation_rate; only 1"),
    "an oblong window": (conv(3, 1, 2, kernel_size=[3, 2]), "has a kernel_size that differs in height and width"),
    "a huge number": (conv(3, 1, 2, strides=10**400), "has strides a huge number; it must be"),
    "causal padding": (conv(3, 1, 2, padding="causal"), "has padding 'causal'; only valid or same"),
    "slopes that differ": (("PReLU", {}, {"alpha": np.array([0.1, 0.2], np.float32)}), "has slopes that differ"),
    "uneven zeros": (plain("ZeroPadding2D", padding=[[1, 1], [2, 2]]), "has padding .* only that of rows and columns"),
    "zeros at the end": (plain("ZeroPadding2D"), r"'n0' \(ZeroPadding2D\) ends the model with zeros around maps"),
    "a variance below 0": (plain("Normalization", mean=0.0, variance=-1.0), "a mean or variance that is no number, or"),
    "means of more channels": (plain("Normalization", mean=[1.0, 2.0], variance=1.0), "has 2 numbers as mean for 1"),
    "a slope below 0": (plain("LeakyReLU", negative_slope=-0.5), "has a slope of -0.5; only one from 0 to 1 can be"),
    "a slope and a limit": (plain("ReLU", max_value=6.0, negative_slope=0.1), "has a slope and a max_value"),
    "a limit": (plain("ReLU", max_value=5.0), "has max_value 5; only None or 6"),
    "a setting of tomorrow": (conv(3, 1, 2, gain=2), "has the setting 'gain'; this program does not know it"),
    "no features": (dense(6, 4), r"'n0' \(Dense\) reads \(6, 6, 1\), not features; put a Flatten before it"),
    "another kernel": (conv(3, 2, 2), r"has a kernel of \(3, 3, 2, 2\), needs \(3, 3, 1, 2\)"),
    "too large a kernel": (conv(7, 1, 2), r"'n0' \(Conv2D\) does not fit \(layer"),
    "another axis": (plain("BatchNormalization", axis=1), "has axis 1; only -1 or 3"),
    "a third array": (("Conv2D", conv(3, 1, 2)[1], {**conv(3, 1, 2)[2], "more": np.ones(2)}), "has 3 arrays"),
    "no array": (("Conv2D", conv(3, 1, 2)[1], {}), "has 0 arrays, not kernel and bias"),
    "other maps": (plain("Reshape", target_shape=[4, 9, 1]), r"makes \(4, 9, 1\) of \(6, 6, 1\)"),
    "another count": (plain("Reshape", target_shape=[5, -1]), "does not make another shape"),
    "an infinite scale": (plain("Rescaling", scale=1e308, offset="1"), "has a wrong offset: '1' is not a number"),
}


CHAINS: dict[str, tuple[Model, str]] = {
    "behind zeros": ([plain("ZeroPadding2D"), plain("ReLU")], r"'n1' \(ReLU\) stands behind a ZeroPadding2D"),
    "a maximum of zeros": ([conv(3, 1, 2), plain("ZeroPadding2D"), plain("MaxPooling2D")], "let it pad itself, or pad"),
    "a maximum of shifted zeros": (
        [conv(3, 1, 2, activation="relu"), norm(2), plain("ZeroPadding2D"), plain("MaxPooling2D")],
        "let it pad itself, or pad what a ReLU gives",
    ),
    "padded twice": ([plain("ZeroPadding2D"), plain("AveragePooling2D", pool_size=3, padding="same")], "pads what"),
    "behind a log-softmax": (
        [FLATTEN, dense(36, 4, activation="log_softmax"), dense(4, 4)],
        r"'n2' \(Dense\) stands behind the log_softmax of n1",
    ),
}


@pytest.mark.parametrize("case", CHAINS)
def test_layers_that_cannot_follow_are_named(case: str, tmp_path: Path) -> None:
    model, message = CHAINS[case]
    refused(tmp_path, keras_zip(model, configuration(model, SHAPE)), message)


@pytest.mark.parametrize("case", LAYERS)
def test_what_no_layer_computes_is_named(case: str, tmp_path: Path) -> None:
    layer, message = LAYERS[case]
    refused(tmp_path, keras_hdf5([layer], configuration([layer], SHAPE)), message)
