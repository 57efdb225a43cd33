"""Test networks as TOML: the shipped files, round trips, and errors that name the line."""

import re
from dataclasses import MISSING, replace
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.layers import AvgPool, Conv2d, Linear, MaxPool
from app.network.definitions import FOLDER, NETWORKS, Network, network_by_name
from app.network.graph import build_graph, find_network
from app.network.network import KINDS, LEAST_SCALE, MOST_SCALE, key_defaults
from app.network.toml import MAX_BYTES, network_toml, parse_network, read_network
from app.network.weights import Weights
from tests.support.networks_for_tests import random_graph
from tests.support.random_networks import random_text

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_the_shipped_files_equal_the_writers_output(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    network = parse_network(text, path)
    assert network.name == path.stem and network.summary
    assert network_toml(network) == text


def test_mlp_n_has_n_hidden_units() -> None:
    wide = network_by_name("mlp_500")
    assert wide is not None and wide.name == "mlp_500"
    assert wide.layers == tuple(Linear("fc1", 500) if x.name == "fc1" else x for x in NETWORKS["mlp"].layers)
    assert parse_network(network_toml(wide), "x") == wide


def test_the_digest_ignores_name_and_summary() -> None:
    lenet5 = NETWORKS["lenet5"]
    same = Network("other", "another summary", lenet5.input_shape, lenet5.layers)
    assert same.digest == lenet5.digest
    others = [
        Network("lenet5", lenet5.summary, (1, 32, 32), lenet5.layers),
        Network("lenet5", lenet5.summary, lenet5.input_shape, lenet5.layers, pixel_scale=1.0),
        Network("lenet5", lenet5.summary, lenet5.input_shape, (Conv2d("conv1", 32, 5, stride=2), *lenet5.layers[1:])),
    ]
    assert len({lenet5.digest, *(other.digest for other in others)}) == 4


# Networks in docs/networks/: input shape, layer types, shapes after the poolings, and number of parameters, which
# depends on the sizes of filters and products, padding and biases.
BLOCK = "conv2d relu maxpool"
FILES: dict[str, tuple[tuple[int, ...], str, list[tuple[int, ...]], int]] = {
    "lenet5_original": (
        (1, 28, 28),
        "conv2d tanh avgpool conv2d tanh avgpool flatten linear tanh linear tanh linear",
        [(6, 14, 14), (16, 5, 5)],
        61_706,
    ),
    "keras_convnet": ((1, 28, 28), f"{BLOCK} {BLOCK} flatten linear", [(32, 13, 13), (64, 5, 5)], 34_826),
    "pytorch_mnist": ((1, 28, 28), f"conv2d relu {BLOCK} flatten linear relu linear", [(64, 12, 12)], 1_199_882),
    "cifar_lenet": ((3, 32, 32), f"{BLOCK} {BLOCK} flatten linear relu linear", [(32, 16, 16), (64, 8, 8)], 2_156_490),
}


@pytest.mark.parametrize("path", sorted((ROOT / "docs/networks").glob("*.toml")), ids=lambda path: path.stem)
def test_example_networks_are_named_by_their_files(path: Path) -> None:
    shape, kinds, pooled, parameters = FILES[path.stem]
    found = read_network(path)
    assert (found.name, found.input_shape) == (path.stem, shape)
    assert " ".join(layer.kind for layer in found.layers) == f"{kinds} argmax"
    graph = random_graph(found)
    assert [step.out_shape for step in graph.steps if isinstance(step.layer, AvgPool | MaxPool)] == pooled
    assert sum(array.size for array in graph.parameters.values()) == parameters
    assert f"(networks/{path.name})" in (ROOT / "docs/networks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("bias", ["true", "false"])
def test_bias_requires_or_excludes_a_bias(bias: str) -> None:
    text = (ROOT / "docs/networks/lenet5_original.toml").read_text().replace("bias = true", f"bias = {bias}")
    network = parse_network(text, "lenet5_original.toml")
    right = dict(random_graph(network, bias=bias == "true").parameters)
    assert {name for name in right if name.endswith("_bias")} == (
        {f"{name}_bias" for name in ("conv1", "conv2", "fc1", "fc2", "fc3")} if bias == "true" else set()
    )
    if bias == "true":
        wrong, fault = {name: array for name, array in right.items() if name != "fc2_bias"}, "fc2_bias is missing"
    else:
        wrong, fault = right | {"conv1_bias": np.ones(6)}, "conv1_bias is not part of network lenet5_original"
    with pytest.raises(UserError, match=fault):
        build_graph(network, Weights(wrong, "", Path("w")))


SUMMARIES = ("", "plain", 'a "quoted" \\ one', "7×7 – ok")
SCALES = (1 / 255, 1.0, LEAST_SCALE, MOST_SCALE, 0.1, 1e-20, 123456.789)


def test_written_networks_are_read_back() -> None:
    """The networks have every layer type and every setting, at its default and at another value."""
    seen: dict[str, set[object]] = {}
    for seed in range(150):
        drawn = parse_network(random_text(seed), "x.toml")
        network = replace(drawn, summary=SUMMARIES[seed % 4], pixel_scale=SCALES[seed % 7])
        found = parse_network(network_toml(network), "x.toml")
        assert found == network and found.digest == network.digest, seed
        assert network_toml(found) == network_toml(network), seed
        for layer in drawn.layers:
            for key, default in key_defaults(layer).items():
                seen.setdefault(f"{layer.kind} {key}", set()).add(getattr(layer, key) == default)
    settings = {f"{name} {key}": default for name, kind in KINDS.items() for key, default in key_defaults(kind).items()}
    assert {name: seen.get(name) for name in settings} == {
        name: {False} if default is MISSING else {False, True} for name, default in settings.items()
    }


# --- errors of a network file: one line with file, line number and remedy


GOOD = """\
name = "small" # line 1
input = [1, 28, 28]
pixel_scale = "1/255"

[[layers]] # line 5
type = "conv2d"
maps = 6
kernel = 5

[[layers]] # line 10
type = "relu"

[[layers]] # line 13
type = "maxpool"
window = 2

[[layers]] # line 17
type = "flatten"

[[layers]] # line 20
type = "linear"
outputs = 10
"""
RELU = '\n[[layers]]\ntype = "relu"\n'
COMMENTS = "#\n" * (MAX_BYTES // 2)
FC = '[[layers]]\ntype = "linear"\noutputs = '
# Text in GOOD, its replacement, the line of the error, and the error with its remedy.
FAULTS: list[tuple[str, str, int, str]] = [
    # TOML itself
    ("[1, 28, 28]", "[1, 28, 28", 3, r"not TOML \(Unclosed array in column 1\): correct it"),
    ("[1, 28, 28]", "[" * 900, 1, "brackets are nested too deeply: no value needs more than one pair"),
    ("outputs = 10\n", 'outputs = "ten', 22, r"not TOML \(.* at the end\): correct it"),
    ("maps = 6", "maps = 6\nmaps = 6", 8, r"not TOML \(Cannot overwrite a value in column 9\)"),
    ("maps = 6", "maps = 6" + "0" * 980, 7, "maps is 60+…, but must be a whole number from 1 to 99,999"),
    ("maps = 6", f"maps = 6 #{'x' * 1000}", 7, "it has more than 1,000 characters: break it or store less in it"),
    ("outputs = 10\n", COMMENTS, 32790, "the text has more than 65,536 characters: store less in it"),
    # keys
    ("pixel_scale", "pixelscale", 3, r'a network has no key "pixelscale": .*; did you mean pixel_scale'),
    ("[[layers]] # line 5", "[extra]\na = 1\n[[layers]]", 5, r'a network has no key "extra": it has name, .*, layers$'),
    ("kernel = 5", "kernels = 5", 8, r'a conv2d layer has no key "kernels": it has .*; did you mean kernel.$'),
    ("kernel = 5", '"ker\\tnel" = 5', 5, r"a conv2d layer has no key .*"),
    ('"relu"', '"relu"\nmaps = 6', 12, r'a relu layer has no key "maps": it has type, name$'),
    ("outputs = 10", "outputs = 10\npixel_scale = 1", 23, r'a linear layer has no key "pixel_scale": move it above'),
    ("kernel = 5\n", "", 5, "kernel is missing: a conv2d layer needs it, add it"),
    ('type = "relu"', "", 10, "the layer has no type: add one of .*relu"),
    ("input = [1, 28, 28]", "", 1, r"input is missing: .*: input = \[1, 28, 28\]"),
    # values
    ('"small"', '"Small"', 1, r'name is "Small", but must be a name of small letters, digits and _, such as lenet5'),
    ('"small"', "5", 1, r"name is 5, but must be a name"),
    ('"small"', '"' + "a" * 65 + '"', 1, r'name is "aaaa.*, but must be a name'),
    ("pixel_scale", 'summary = "\\u0007"\npixel_scale', 3, "summary is .*, but must be one line of text in quotes"),
    ("[1, 28, 28]", "[1, 28]", 2, r"input is \[1, 28\], but must be 1 or 3 channels, then height and width from 1"),
    ("[1, 28, 28]", "[2, 28, 28]", 2, r"input is \[2, 28, 28\], but must be 1 or 3 channels"),
    ("[1, 28, 28]", "[1, 28, 1025]", 2, r"input is \[1, 28, 1025\], but must be 1 or 3 channels"),
    ("[1, 28, 28]", "28", 2, "input is 28, but must be 1 or 3 channels"),
    ('"1/255"', '"1/0"', 3, r'pixel_scale is "1/0", but must be a number from .* or a fraction such as "1/255"'),
    ('"1/255"', "0", 3, "pixel_scale is 0, but"),
    ('"1/255"', "nan", 3, "pixel_scale is NaN, but"),
    ("maps = 6", "maps = 0", 7, "maps is 0, but must be a whole number from 1 to 99,999"),
    ("maps = 6", "maps = 100_000", 7, "maps is 100000, but must be a whole number"),
    ("maps = 6", "maps = true", 7, "maps is true, but must be a whole number"),
    ("maps = 6", "maps = [6]", 7, r"maps is \[6\], but must be a whole number"),
    ("maps = 6", "maps = 6\npadding = -1", 8, "padding is -1, but must be a whole number from 0 to 99,999"),
    ("maps = 6", "maps = 6\nbias = 1", 8, "bias is 1, but must be true or false"),
    # kinds and names
    ('"relu"', '"rellu"', 11, r'unknown layer type "rellu": choose one of .*; did you mean relu'),
    ('"relu"', "7", 11, "unknown layer type 7: choose one of"),
    ('"relu"', '"argmax"', 11, "every network ends with an argmax by itself: remove this layer"),
    ('"relu"', '"relu"\nname = "Relu"', 12, r'name is "Relu", but must be a name like conv1: small letters'),
    ('"relu"', '"relu"\nname = "conv1_bias"', 12, r'name is "conv1_bias", but must be .* not ending in _bias'),
    ('"relu"', '"relu"\nname = "conv1"', 10, "a second layer is named conv1: give each layer its own name"),
    ('"relu"', '"relu"\nname = "argmax"', 12, "name is .*, but must be .* not argmax"),
    # how layers follow each other
    ("window = 2\n", "window = 2\n" + RELU * 97, 308, "102 layers, more than 100: remove some"),
    ("kernel = 5", "kernel = 29", 5, r"layer conv1 \(conv2d\) got input of shape \(1, 28, 28\), but needs .* 29"),
    ("window = 2", "window = 25", 13, r"layer pool1 \(maxpool\) got input of shape \(6, 24, 24\), but needs"),
    ('"relu"', '"resize"\nsize = 28', 10, r"layer resize \(resize\) reads the images, but is not the first layer"),
    ('"relu"', '"softmax"', 10, r"layer softmax \(softmax\) is followed by other layers: move it to the end or remove"),
    ('"conv2d"\nmaps = 6\nkernel = 5', '"relu"', 5, r"layer relu1 \(relu\) comes before any weights: put"),
    ('type = "flatten"', 'type = "tanh"', 20, r"layer fc1 \(linear\) got input .* put a Flatten before it; change"),
    ('"linear"\noutputs = 10', '"conv2d"\nmaps = 1\nkernel = 1', 20, r"layer conv2 \(conv2d\) got input of .*864,"),
    (
        'type = "flatten"\n\n[[layers]] # line 20\ntype = "linear"\noutputs = 10',
        'type = "relu"',
        17,
        r"the network ends with maps of shape \(6, 12, 12\): add a flatten and a linear layer",
    ),
    ("outputs = 10", "outputs = 257", 20, "the network ends with 257 scores: let it end with 2 to 256 classes"),
    ("outputs = 10", "outputs = 1", 20, "the network ends with 1 scores"),
    # sizes
    ("maps = 6", "maps = 99_999", 5, "conv1 gives 57,599,424 numbers an image, more than 16,777,216: reduce"),
    ("outputs = 10", f"outputs = 99_999\n{FC}1000", 23, "up to fc2 the network has .* weights, more than 134,217,728"),
    ("kernel = 5", "kernel = 400\npadding = 399", 5, "the windows of conv1 hold .* numbers, more than 268,435,456"),
]


@pytest.mark.parametrize(("old", "new", "line", "fault"), FAULTS)
def test_an_error_names_the_line(old: str, new: str, line: int, fault: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(UserError) as error:
        parse_network(GOOD.replace(old, new), Path("folder/own.toml"))
    assert re.match(f"folder/own.toml, line {line}: {fault}", str(error.value)), error.value
    assert len(str(error.value).splitlines()) == 1


LAYERS_ELSEWHERE = [
    ("", 5, r"layers are missing: write \[\[layers\]\] and its keys for each layer"),
    ('layers = [{type = "flatten"}]', 5, r"layers are not written as tables: write \[\[layers\]\] above"),
    ('layers = [1]\nsummary = """\n[[layers]]\n"""', 5, "layers are not written as tables"),
    ("layers = 5", 5, "layers are not written as tables"),
    ('[layers]\ntype = "relu"', 5, "layers are not written as tables"),
    ('[["lay\\u0065rs"]]\ntype = "relu"', 1, "layers are not written as tables"),
]


@pytest.mark.parametrize(("layers", "line", "fault"), LAYERS_ELSEWHERE)
def test_layers_must_be_tables(layers: str, line: int, fault: str) -> None:
    """In other notations the line numbers of layers would not be known."""
    with pytest.raises(UserError, match=f"own.toml, line {line}: {fault}"):
        parse_network(f"input = [1, 28, 28]\n\n\n\n{layers}", "own.toml")


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_bytes(GOOD.replace("small", "sm\xe4ll").encode("latin-1"))
    with pytest.raises(UserError, match=r"own.toml, line 1: byte 0xe4 is no UTF-8: store the text as UTF-8"):
        read_network(path)
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(UserError, match=r"own\.toml has 65,537 bytes, more than the 65,536 that are read"):
        find_network(str(path))
    with pytest.raises(UserError, match="is a directory; name a file in it"):
        read_network(tmp_path)
    with pytest.raises(UserError, match=r"missing\.toml does not exist"):
        find_network(str(tmp_path / "missing.toml"))


def test_a_network_without_a_name_is_named_by_its_file(tmp_path: Path) -> None:
    for stem in ("own", "Own net"):
        (tmp_path / f"{stem}.toml").write_text(GOOD.replace('name = "small"', ""))
    assert find_network(str(tmp_path / "own.toml")).name == "own"
    with pytest.raises(UserError, match=r"Own net.toml, line 1: name is missing, and the file's name does not do: add"):
        find_network(str(tmp_path / "Own net.toml"))
