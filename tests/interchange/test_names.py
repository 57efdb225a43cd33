"""What imported networks and their classes are called, and that weights files stand where networks are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.network.definitions import MLP
from app.network.graph import find_network
from app.network.toml import network_toml, parse_network
from app.network.weights import load_weights
from tests.support.foreign_files import channels_first, onnx_of_others
from tests.support.networks_for_tests import random_graph
from tests.support.shell import Refuses

onnx = pytest.importorskip("onnx")
SMALL = parse_network(
    'name = "small"\ninput = [1, 6, 6]\n[[layers]]\ntype = "conv2d"\nmaps = 2\nkernel = 3\nbias = false\n'
    '[[layers]]\ntype = "flatten"\n[[layers]]\ntype = "linear"\noutputs = 3\nbias = false\n',
    "small.toml",
)
NAMES = ("=A", "ß", "c c")


def imported(file: str, *options: str) -> Any:
    assert main(["import", file, *options, "--out", "new.h5", "--overwrite"]) == 0
    return load_weights(Path("new.h5"))


def write_model(file: str, metadata: dict[str, str]) -> None:
    """The model of another system, whose exporter calls all graphs main_graph."""
    model = onnx_of_others(SMALL, random_graph(SMALL, bias=False).parameters, 1 / 255)
    model.graph.name = "main_graph"
    onnx.helper.set_model_props(model, metadata)
    Path(file).write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("file", "name"), [("My-Net.v2.onnx", "my_net_v2"), ("7segments.onnx", "segments"), ("数字.onnx", "imported")]
)
def test_a_network_is_named_after_its_file(file: str, name: str) -> None:
    write_model(file, {})
    found = imported(file)
    assert found.network == found.own_network().name == name and found.classes is None


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
def test_classes_are_kept(kind: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    metadata, classes = METADATA[kind]
    options: list[str] = []
    if file == "a.onnx":
        write_model(file, metadata)
    else:
        arrays = channels_first(SMALL, biases=frozenset())
        save_file = pytest.importorskip("safetensors.numpy").save_file
        save_file({f"{name}.weight": array for name, array in arrays.items()}, file, metadata)
        Path("small.toml").write_text(network_toml(SMALL))
        options = ["--network", "small.toml"]
    assert imported(file, *options).classes == classes
    assert ("are left out: " in " ".join(capsys.readouterr().out.split())) == (classes is None)


def test_a_weights_file_stands_for_its_network(refuses: Refuses, capsys: pytest.CaptureFixture[str]) -> None:
    write_model("own.onnx", {})
    assert find_network("mlp") == MLP
    weights = imported("own.onnx")
    assert find_network("new.h5") == weights.own_network()
    capsys.readouterr()
    assert main(["networks", "new.h5", "--toml"]) == 0
    assert capsys.readouterr().out == network_toml(weights.own_network())
    assert main(["networks", "new.h5", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["networks"]
    assert (row["name"], row["parameters"]) == ("own", sum(array.size for array in weights.arrays.values()))
    assert main(["export", "--network", "new.h5", "new.h5", "--out", "again.npz"]) == 0
    refuses("networks none.h5 --toml", "none.h5 does not exist")
    Path("text.h5").write_text("a text")
    refuses("networks text.h5", "text.h5 is a text file, not HDF5 weights")
