"""Test Keras' files that are hostile, broken or have unknown layers: each gives a one-line error, and no code runs."""

import io
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.network.weights import load_weights
from tests.interchange.test_keras import FLATTEN, bare, conv, dense, norm
from tests.support.foreign_files import imported
from tests.support.keras_files import (
    Model,
    configuration,
    declaring,
    functional,
    hdf5,
    keras_hdf5,
    keras_members,
    keras_zip,
    zipped,
)
from tests.support.shell import user_error

SHAPE = (6, 6, 1)
MODEL: Model = [conv(3, 1, 2), bare("ReLU"), FLATTEN, dense(32, 4)]
CONFIG = configuration(MODEL, SHAPE)


def check_refused(folder: Path, content: bytes, message: str, name: str = "model.keras") -> None:
    """Check that ``import`` gives an error of one line with this message and exit code 2, and writes nothing."""
    (folder / name).write_bytes(content)
    error = user_error(lambda: imported(folder / name))
    assert re.search(message, error) and error.isprintable()
    assert main(["import", str(folder / name), "--out", str(folder / "out.h5")]) == 2
    assert not (folder / "out.h5").exists()


def test_impossible_numbers_are_refused(tmp_path: Path) -> None:
    kernel = MODEL[0][2]["kernel"]
    for bad in (np.nan, np.inf):
        model = [("Conv2D", MODEL[0][1], {**MODEL[0][2], "kernel": np.where(kernel > 0, bad, kernel)}), *MODEL[1:]]
        check_refused(tmp_path, keras_zip(model, CONFIG), r"conv1 contains \d+ NaN or infinite values")
    negative = norm(2)
    negative[2]["moving_variance"][1] = -1
    model = [MODEL[0], negative, *MODEL[1:]]
    check_refused(
        tmp_path, keras_zip(model, configuration(model, SHAPE)), "'n1' has a variance that is negative or no number"
    )
    model = [MODEL[0], norm(3), *MODEL[1:]]
    check_refused(tmp_path, keras_zip(model, configuration(model, SHAPE)), r"has a scale of \(3,\), needs \(2,\)")
    model = [FLATTEN, norm(1600)]
    wrong = r"layer 'n1' \(BatchNormalization\) cannot read what scalings before it leave"
    check_refused(tmp_path, keras_zip(model, configuration(model, (40, 40, 1))), wrong)


def set_key(where: str, value: Any) -> Any:
    """Return the configuration of a functional model with another value at a path such as ``layers.2.config.name``."""
    config = functional(MODEL, SHAPE)
    *parents, last = where.split(".")
    at = config["config"]
    for key in parents:
        at = at[int(key) if isinstance(at, list) else key]
    at[int(last) if isinstance(at, list) else last] = value
    return config


def nested(depth: int) -> Any:
    """The configuration of a model in this many others."""
    found = CONFIG
    for _ in range(depth):
        found = {**found, "config": {"name": "s", "layers": [found]}}
    return found


TENSOR = {"class_name": "__keras_tensor__", "config": {"keras_history": ["n1", 0, 0]}}
GRAPHS: dict[str, tuple[Any, str]] = {
    "a sum": (set_key("layers.3.inbound_nodes.0.args", [[TENSOR, TENSOR]]), "'n2' .Flatten. does not read one layer"),
    "a branch": (set_key("layers.4.inbound_nodes.0.args", [TENSOR]), r"layer 'n3' \(Dense\) reads what 'n2' reads"),
    "a layer used twice": (set_key("layers.3.inbound_nodes", [TENSOR, TENSOR]), "is not used once"),
    "another output": (set_key("output_layers", [["n1", 0, 0]]), "has layers that do not lead to one output"),
    "in training": (set_key("layers.3.inbound_nodes.0.kwargs", {"training": True}), "is called with options"),
    "an object of one's own": (set_key("layers.1.registered_name", "Custom>Conv2D"), "is a custom object"),
    "a module of one's own": (set_key("layers.1.module", "mine.layers"), "is a custom object; its own code"),
    "no module": (set_key("layers.1.module", None), "is a custom object"),
    "a name of two lines": (set_key("layers.1.config.name", "a\nb"), r"has a layer of the name 'a\\nb'"),
    "no layers": (set_key("layers", []), "has no layers"),
    "a layer that is none": (set_key("layers.1", 3), "has a layer without a class"),
    "four channels": (set_key("layers.0.config.batch_shape", [None, 6, 6, 4]), "reads images"),
    "no shape": (set_key("layers.0.config.batch_shape", None), "does not say the shape of its images"),
    "a huge image": (set_key("layers.0.config.batch_shape", [None, 10**9, 10**9, 1]), "reads images"),
    "a class of one's own": (
        {"module": None, "class_name": "Mine", "config": {}, "registered_name": "Mine"},
        r"layer 'model' \(Mine\) is a custom object; its own code was not run",
    ),
    "too many models in models": (nested(9), "or more than 1,000 or 8 models in models"),
    "no object": ([1], "has a layer without a class"),
}


@pytest.mark.parametrize("write", [keras_zip, keras_hdf5], ids=["keras", "h5"])
@pytest.mark.parametrize("case", GRAPHS)
def test_graphs_that_are_no_chain_are_refused(case: str, write: Callable[[Model, Any], bytes], tmp_path: Path) -> None:
    check_refused(tmp_path, write(MODEL, GRAPHS[case][0]), GRAPHS[case][1])


MEMBERS = keras_members(MODEL, CONFIG)
DEEP = "[" * 10_000 + "]" * 10_000


def encrypted_archive() -> bytes:
    """Return the archive with its first member marked as encrypted."""
    data = bytearray(zipped(MEMBERS))
    for mark, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(mark) + flags] |= 1
    return bytes(data)


def archive_with_repeated_name() -> bytes:
    content = zipped({**MEMBERS, "config.jsoN": "{}"})
    return content.replace(b"config.jsoN", b"config.json")


def archive_with_link() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in MEMBERS.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o120777 if name == "model.weights.h5" else 0o600) << 16
            archive.writestr(member, content)
    return stream.getvalue()


ARCHIVES: dict[str, tuple[Callable[[], bytes], str]] = {
    "a path": (lambda: zipped({**MEMBERS, "../../evil": "x"}), "contains '../../evil', which lies outside the archive"),
    "an absolute path": (lambda: zipped({**MEMBERS, "/etc/evil": "x"}), "which lies outside the archive"),
    "a member twice": (archive_with_repeated_name, "contains 'config.json', which stands there twice"),
    "an encrypted member": (encrypted_archive, "contains 'metadata.json', which is encrypted"),
    "a link": (archive_with_link, "contains 'model.weights.h5', which is a link"),
    "no configuration": (lambda: zipped({"metadata.json": "{}"}), "has no config.json, so is no Keras model"),
    "weights in parts": (
        lambda: zipped({name: one for name, one in MEMBERS.items() if name[0] != "m" or "meta" in name}),
        "has no model.weights.h5",
    ),
    "a bomb": (
        lambda: declaring({**MEMBERS, "assets/zeros": ""}, "assets/zeros", 200 << 20),
        "unpacks to 209,7.* bytes",
    ),
    "a large configuration": (lambda: declaring(MEMBERS, "config.json", 50 << 20), "has a config.json of 52,428,800"),
    "more than it declares": (
        lambda: declaring({**MEMBERS, "config.json": bytes(32 << 20)}, "config.json", 100),
        "has a wrong configuration|Bad CRC-32",
    ),
    "nested 10,000 deep": (lambda: zipped({**MEMBERS, "config.json": DEEP}), "has a wrong configuration: not JSON"),
    "a name twice": (lambda: zipped({**MEMBERS, "config.json": '{"a": 1, "a": 2}'}), "has the same name twice"),
    "no UTF-8": (lambda: zipped({**MEMBERS, "config.json": b"\xff"}), "has a config.json that is no UTF-8"),
    "no HDF5": (lambda: zipped({**MEMBERS, "model.weights.h5": b"x" * 99}), "model.weights.h5 is not an HDF5 file"),
    "no weights": (lambda: zipped({**MEMBERS, "model.weights.h5": hdf5({})}), "has 0 arrays, not kernel and bias"),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_a_bad_archive_gives_one_line_and_takes_little_memory(case: str, tmp_path: Path) -> None:
    content = ARCHIVES[case][0]()
    tracemalloc.start()
    try:
        check_refused(tmp_path, content, ARCHIVES[case][1])
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def archive_with_changed_hdf5(make: Callable[[h5py.File], None]) -> bytes:
    stream = io.BytesIO(MEMBERS["model.weights.h5"] if isinstance(MEMBERS["model.weights.h5"], bytes) else b"")
    with h5py.File(stream, "r+") as file:
        make(file)
    return zipped({**MEMBERS, "model.weights.h5": stream.getvalue()})


def add_external_link(file: h5py.File) -> None:
    del file["layers/conv2d/vars/0"]
    file["layers/conv2d/vars/0"] = h5py.ExternalLink("/etc/hostname", "x")


def add_soft_link(file: h5py.File) -> None:
    del file["layers/conv2d/vars"]
    file["layers/conv2d/vars"] = h5py.SoftLink("/optimizer")


def add_group_cycle(file: h5py.File) -> None:
    file["layers/again"] = file["layers"]


def add_many_groups(file: h5py.File) -> None:
    for at in range(1001):
        file.create_group(f"layers/{at}")


def add_huge_dataset(file: h5py.File) -> None:
    del file["layers/conv2d/vars/0"]
    file.create_dataset("layers/conv2d/vars/0", (10**6, 10**6), "f4", chunks=(10, 10))


HDF5: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "a link to another file": (add_external_link, "dataset 'layers/conv2d/vars/0' is a soft or external link"),
    "a link to a group": (add_soft_link, "dataset 'layers/conv2d/vars' is a soft or external link"),
    "a group within itself": (add_group_cycle, "has too many or too deep groups in layers"),
    "many groups": (add_many_groups, "has more than 1,000 names in one group"),
    "a petabyte": (add_huge_dataset, "declares 4,000,000,000,000 bytes, more than"),
}


@pytest.mark.parametrize("case", HDF5)
def test_hostile_hdf5_gives_a_one_line_error(case: str, tmp_path: Path) -> None:
    check_refused(tmp_path, archive_with_changed_hdf5(HDF5[case][0]), HDF5[case][1])


def test_errors_for_other_hdf5_say_what_to_save(tmp_path: Path) -> None:
    weights = hdf5({"layers/dense/vars/0": np.ones(3)})
    wrong = r"has no model_config, so is no Keras model .*; save the whole model"
    check_refused(tmp_path, weights, wrong, "model.weights.h5")
    check_refused(tmp_path, hdf5({"fc1": np.ones(3)}, {"network": "mlp"}), "is a weights file already; name it with")
    (tmp_path / "model.h5").write_bytes(keras_hdf5(MODEL, CONFIG))
    with pytest.raises(
        UserError, match=r"if it is a Keras model, make weights of it: python main.py import .*model.h5 --out \S+.h5"
    ):
        load_weights(tmp_path / "model.h5")


# --- unknown layers


LAYERS: dict[str, tuple[Any, str]] = {
    "code": (bare("Lambda", function={"class_name": "__lambda__", "config": {"code": "4wEA"}}), "Lambda. cannot"),
    "another layer": (bare("Attention"), r"layer 'n0' \(Attention\) cannot be imported; known are Activation, "),
    "a function of one's own": (
        bare("Activation", activation={"module": "builtins", "class_name": "function", "config": "Custom>mine"}),
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
    "uneven zeros": (bare("ZeroPadding2D", padding=[[1, 1], [2, 2]]), "has padding .* only that of rows and columns"),
    "zeros at the end": (bare("ZeroPadding2D"), r"'n0' \(ZeroPadding2D\) ends the model with zeros around maps"),
    "a variance below 0": (bare("Normalization", mean=0.0, variance=-1.0), "a mean or variance that is no number, or"),
    "means of more channels": (bare("Normalization", mean=[1.0, 2.0], variance=1.0), "has 2 numbers as mean for 1"),
    "a slope below 0": (bare("LeakyReLU", negative_slope=-0.5), "has a slope of -0.5; only one from 0 to 1 can be"),
    "a slope and a limit": (bare("ReLU", max_value=6.0, negative_slope=0.1), "has a slope and a max_value"),
    "a limit": (bare("ReLU", max_value=5.0), "has max_value 5; only None or 6"),
    "a setting of tomorrow": (conv(3, 1, 2, gain=2), "has the setting 'gain'; this program does not know it"),
    "no features": (dense(6, 4), r"'n0' \(Dense\) reads \(6, 6, 1\), not features; put a Flatten before it"),
    "another kernel": (conv(3, 2, 2), r"has a kernel of \(3, 3, 2, 2\), needs \(3, 3, 1, 2\)"),
    "too large a kernel": (conv(7, 1, 2), r"'n0' \(Conv2D\) does not fit \(layer"),
    "another axis": (bare("BatchNormalization", axis=1), "has axis 1; only -1 or 3"),
    "a third array": (("Conv2D", conv(3, 1, 2)[1], {**conv(3, 1, 2)[2], "more": np.ones(2)}), "has 3 arrays"),
    "no array": (("Conv2D", conv(3, 1, 2)[1], {}), "has 0 arrays, not kernel and bias"),
    "other maps": (bare("Reshape", target_shape=[4, 9, 1]), r"makes \(4, 9, 1\) of \(6, 6, 1\)"),
    "another count": (bare("Reshape", target_shape=[5, -1]), "does not make another shape"),
    "an infinite scale": (bare("Rescaling", scale=1e308, offset="1"), "has a wrong offset: '1' is not a number"),
}

CHAINS: dict[str, tuple[Model, str]] = {
    "behind zeros": ([bare("ZeroPadding2D"), bare("ReLU")], r"'n1' \(ReLU\) stands behind a ZeroPadding2D"),
    "a maximum of zeros": ([conv(3, 1, 2), bare("ZeroPadding2D"), bare("MaxPooling2D")], "let it pad itself, or pad"),
    "a maximum of shifted zeros": (
        [conv(3, 1, 2, activation="relu"), norm(2), bare("ZeroPadding2D"), bare("MaxPooling2D")],
        "let it pad itself, or pad what a ReLU gives",
    ),
    "padded twice": ([bare("ZeroPadding2D"), bare("AveragePooling2D", pool_size=3, padding="same")], "pads what"),
    "a softmax": ([FLATTEN, bare("Softmax"), bare("Activation", activation="log_softmax")], "log_softmax of a softmax"),
    "behind a log-softmax": (
        [FLATTEN, dense(36, 4, activation="log_softmax"), dense(4, 4)],
        r"'n2' \(Dense\) stands behind the log_softmax of n1",
    ),
}


@pytest.mark.parametrize("case", CHAINS)
def test_errors_name_layers_that_cannot_follow(case: str, tmp_path: Path) -> None:
    model, message = CHAINS[case]
    check_refused(tmp_path, keras_zip(model, configuration(model, SHAPE)), message)


@pytest.mark.parametrize("case", LAYERS)
def test_errors_name_layers_that_cannot_be_imported(case: str, tmp_path: Path) -> None:
    layer, message = LAYERS[case]
    check_refused(tmp_path, keras_hdf5([layer], configuration([layer], SHAPE)), message)
