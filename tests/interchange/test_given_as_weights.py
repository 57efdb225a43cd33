"""Test other systems' files given as weights: the error names the import command; names of networks and classes."""

import json
import re
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from app.interchange.layout import to_channels_first
from app.interchange.named_arrays import Description, torch_key
from app.network.definitions import LENET5, MINIDNN86, MLP, Network
from app.network.foreign import FORMATS
from app.network.graph import build_graph, find_network
from app.network.toml import network_toml
from app.network.weights import load_weights
from app.tools.export import WRITERS
from tests.support.foreign_files import (
    SMALL,
    channels_first,
    flat_dump,
    npz_file,
    onnx_of_others,
    safetensors_file,
    state_dict_file,
)
from tests.support.keras_files import Model, configuration, keras_hdf5, keras_zip
from tests.support.mxnet_files import course_network, mxnet_names, params_file
from tests.support.networks_for_tests import random_graph
from tests.support.shell import Refuses, user_error

COURSE = course_network(3, (2, 3), 6, 12)
DENSE = {"kernel": np.ones((36, 4), np.float32), "bias": np.ones(4, np.float32)}
KERAS: Model = [("Flatten", {}, {}), ("Dense", {"units": 4}, DENSE)]


def export_random_network(ending: str, network: Network) -> bytes:
    graph = random_graph(network)
    return WRITERS[ending](Description(network, graph.input_scale, None), graph.parameters)


def with_biases(network: Network, *layers: str) -> dict[str, np.ndarray]:
    return channels_first(network, biases=frozenset(layers))


def lenet5_torch_arrays() -> dict[str, np.ndarray]:
    theirs = to_channels_first(LENET5, random_graph(LENET5).parameters)
    return {torch_key(name): array for name, array in theirs.items()}


FILES: dict[str, tuple[str, Callable[[], bytes], str]] = {  # name, content, format
    "an ONNX model": ("a model.onnx", lambda: export_random_network(".onnx", LENET5), "ONNX model"),
    "our safetensors": ("m.safetensors", lambda: export_random_network(".safetensors", MINIDNN86), "safetensors"),
    "safetensors": ("m.safetensors", lambda: safetensors_file(lenet5_torch_arrays()), "safetensors"),
    "named as weights": ("m.h5", lambda: safetensors_file(lenet5_torch_arrays()), "safetensors"),
    "our NPZ": ("m.npz", lambda: export_random_network(".npz", MINIDNN86), "NumPy archive"),
    "NPZ": ("it's.npz", lambda: npz_file(lenet5_torch_arrays()), "NumPy archive"),
    "a state dict": ("m.pt", lambda: state_dict_file(lenet5_torch_arrays()), "PyTorch state dict"),
    "MXNet": ("eng-0001.params", lambda: params_file(mxnet_names(with_biases(COURSE, "fc1", "fc2"))), "MXNet arrays"),
    "Keras": ("clothes.keras", lambda: keras_zip(KERAS, configuration(KERAS, (6, 6, 1))), "Keras model"),
    "Keras' HDF5": ("m.h5", lambda: keras_hdf5(KERAS, configuration(KERAS, (6, 6, 1))), "Keras HDF5 model"),
    "mini-dnn": ("weights-86.bin", lambda: flat_dump(MINIDNN86, with_biases(MINIDNN86)), "mini-dnn flat dump"),
}


def run_named_import(message: str) -> Path:
    """Run the import command in an error message; return the path of the weights file that it writes."""
    found = re.search(r"python main\.py (import .+? --out (?:'[^']*'|\S+))", message)
    assert found, message
    words = shlex.split(found[1])
    assert main(words) == 0
    return Path(words[-1])


def test_every_format_is_tested() -> None:
    assert {format_of for *_, format_of in FILES.values()} == {row.name for row in FORMATS}


@pytest.mark.parametrize("kind", FILES)
def test_the_command_in_the_error_makes_weights(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    package = {"ONNX model": "onnx", "safetensors": "safetensors", "PyTorch state dict": "torch"}.get(FILES[kind][2])
    if package and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    name, content, _ = FILES[kind]
    Path(name).write_bytes(content())
    assert main(["--weights", name, "--device", "cpu"]) == 2
    weights = load_weights(run_named_import(capsys.readouterr().err))
    build_graph(weights.stored_network(), weights)
    assert Path(name).read_bytes() == content()


def test_the_command_in_the_error_names_a_new_file() -> None:
    Path("m.npz").write_bytes(npz_file(lenet5_torch_arrays()))
    Path("m.h5").write_text(json.dumps("mine"))
    assert user_error(lambda: load_weights(Path("m.npz"))).count("--out m_imported.h5") == 1


# --- names of networks and classes, and weights files given as --network


NAMES = ("=A", "ß", "c c")


def import_file(file: str, *options: str) -> Any:
    assert main(["import", file, *options, "--out", "new.h5", "--overwrite"]) == 0
    return load_weights(Path("new.h5"))


def write_onnx_model(file: str, metadata: dict[str, str]) -> None:
    """Write a model whose exporter gives all graphs the name main_graph."""
    onnx = pytest.importorskip("onnx")
    model = onnx_of_others(SMALL, random_graph(SMALL, bias=False).parameters, 1 / 255)
    model.graph.name = "main_graph"
    onnx.helper.set_model_props(model, metadata)
    Path(file).write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("file", "name"), [("My-Net.v2.onnx", "my_net_v2"), ("7segments.onnx", "segments"), ("数字.onnx", "imported")]
)
def test_a_network_is_named_after_its_file(file: str, name: str) -> None:
    write_onnx_model(file, {})
    found = import_file(file)
    assert found.network == found.stored_network().name == name and found.classes is None


METADATA: dict[str, tuple[dict[str, str], tuple[str, ...] | None]] = {
    "a list": ({"producer": "x", "classes": json.dumps(NAMES)}, NAMES),
    "an object": ({"names": json.dumps({str(at): name for at, name in reversed([*enumerate(NAMES)])})}, NAMES),
    "too few": ({"labels": '["a", "b"]'}, None),
    "numbers that lack one": ({"id2label": '{"0": "a", "1": "b", "3": "c"}'}, None),
    "no text": ({"class_names": "[1, 2, 3]"}, None),
    "no JSON": ({"names": "{0: 'a', 1: 'b', 2: 'c'}"}, None),
    "a line": ({"classes": '["a", "b", "c\\n"]'}, None),
}


@pytest.mark.parametrize("file", ["a.onnx", "a.safetensors"])
@pytest.mark.parametrize("kind", METADATA)
def test_import_keeps_class_names(kind: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    metadata, classes = METADATA[kind]
    options: list[str] = []
    if file == "a.onnx":
        write_onnx_model(file, metadata)
    else:
        arrays = with_biases(SMALL)
        save_file = pytest.importorskip("safetensors.numpy").save_file
        save_file({f"{name}.weight": array for name, array in arrays.items()}, file, metadata)
        Path("small.toml").write_text(network_toml(SMALL))
        options = ["--network", "small.toml"]
    assert import_file(file, *options).classes == classes
    assert ("are left out: " in " ".join(capsys.readouterr().out.split())) == (classes is None)


def test_a_weights_file_may_name_its_network(refuses: Refuses, capsys: pytest.CaptureFixture[str]) -> None:
    write_onnx_model("own.onnx", {})
    assert find_network("mlp") == MLP
    weights = import_file("own.onnx")
    assert find_network("new.h5") == weights.stored_network()
    capsys.readouterr()
    assert main(["networks", "new.h5", "--toml"]) == 0
    assert capsys.readouterr().out == network_toml(weights.stored_network())
    assert main(["networks", "new.h5", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["networks"]
    assert (row["name"], row["parameters"]) == ("own", sum(array.size for array in weights.arrays.values()))
    assert main(["export", "--network", "new.h5", "new.h5", "--out", "again.npz"]) == 0
    refuses("networks none.h5 --toml", "none.h5 does not exist")
    Path("text.h5").write_text("a text")
    refuses("networks text.h5", "text.h5 is a text file, not HDF5 weights")
