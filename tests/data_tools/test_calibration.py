"""Test ``data_tools`` round, quantise and sparsify: what they write, print and refuse, and that zeros are kept."""

import re
from pathlib import Path

import numpy as np
import pytest

from app.files import shipped
from app.kernels.plain_problems import is_two_of_four
from app.layers import Argmax, AvgPool, Conv2d, Flatten, Layer, Linear, Relu, Shape
from app.network import rounding
from app.network.definitions import MINIDNN86, Network
from app.network.graph import build_graph
from app.network.pruning import sparsify_layers
from app.network.rounding import (
    Rounding,
    quantise_activations,
    quantise_convolution,
    round_layers,
    round_with_compensation,
)
from app.network.weights import load_weights, round_to_storage, save_weights
from data_tools import calibration
from data_tools.__main__ import main
from data_tools.fashion_mnist import CLASSES, Split
from tests.support.bundle_for_tests import IMAGES, TRUTH, trained
from tests.support.networks_for_tests import FLAT, network, random_graph, random_images
from tests.support.shell import Refuses


def two_convolutions(name: str, shape: Shape, maps: tuple[int, int], kernel: int, *outputs: int) -> Network:
    """Return a network of two convolutions, each with ReLU and average pooling, and linear layers."""
    layers: list[Layer] = []
    for at, count in enumerate(maps, 1):
        layers += [Conv2d(f"conv{at}", maps=count, kernel=kernel), Relu(f"relu{at}"), AvgPool(f"pool{at}", window=2)]
    linear = [Linear(f"fc{at}", outputs=count) for at, count in enumerate(outputs, 1)]
    return network(name, shape, *layers, Flatten("flatten"), *linear, Argmax("argmax"))


SMALL = two_convolutions("small", (1, 28, 28), (8, 16), 5, 32, 10)
# Eight maps of three channels, so that each is almost a sum of others.
ALIKE = two_convolutions("alike", (3, 4, 4), (8, 64), 1, 3)


def random_weights(path: Path) -> Path:
    save_weights(path, random_graph(SMALL).parameters, network=SMALL, recipe="random")
    return path


@pytest.fixture(autouse=True)
def training_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replace the training images by random ones; another split is an error."""
    splits = {"train": Split(IMAGES, TRUTH, tmp_path)}
    monkeypatch.setattr(calibration, "open_split", lambda split, data_dir: splits[split])


def test_quantise_adds_integers_and_changes_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "mine.h5", tmp_path / "mine8.h5"
    arrays = random_graph(SMALL, bias=False).parameters
    about = {"network": SMALL, "classes": CLASSES, "input_scale": 1 / 200, "expected_correct": {100: 90}}
    save_weights(source, arrays, recipe="random", storage="float16", **about)  # type: ignore[arg-type]
    assert main(["quantise", str(source), str(out), "--images", "70"]) == 0
    limits, change, wrote = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"conv2: byte 255 stands for activations of [\d.e-]+ to [\d.e-]+, by map", limits)
    ours, plain = map(float, re.findall(r"[\d.]+e-\d\d", change))
    assert 0 < ours < plain and wrote == f"wrote {out}"
    before, found = load_weights(source), load_weights(out)
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
    for name in ("network", "classes", "input_scale", "expected_correct", "storage", "definition"):
        assert getattr(found, name) == getattr(before, name)
    assert found.recipe == "random; conv2 quantised to 8 bits on 70 training images"
    graph = build_graph(SMALL, before)
    wanted, *_ = quantise_convolution(graph, IMAGES[:70, None])
    assert found.quantised is not None
    for name, array in wanted.arrays.items():
        np.testing.assert_array_equal(found.quantised.arrays[name], array, strict=True)
    # The quantised bytes and filters give nearly the same results.
    x = graph.input_of_step(3, IMAGES[:20, None], np.float64)
    layer = graph.steps[3].layer
    both = (
        layer.reference(x, graph.parameters),
        layer.reference(
            quantise_activations(x, wanted.limits), {"conv2": wanted.filters * wanted.steps.astype(np.float64)}
        ),
    )
    assert np.abs(both[1] - both[0]).max() < 0.02 * np.abs(both[0]).max()


def test_quantise_accepts_a_map_without_activations(tmp_path: Path) -> None:
    graph = random_graph(SMALL, bias=False)
    graph.parameters["conv1"][..., 5] = 0
    graph.parameters["conv2"][..., 7] = 0
    found, *_ = quantise_convolution(graph, IMAGES[:20, None])
    save_weights(tmp_path / "w.h5", graph.parameters, network=SMALL, quantised=found)
    assert (found.limits > 0).all() and not found.filters[..., 7].any()


def test_quantise_refuses_other_networks(tmp_path: Path, refuses: Refuses) -> None:
    mlp, large = trained(tmp_path / "b.h5", "mlp"), tmp_path / "c.h5"
    save_weights(large, random_graph(MINIDNN86).parameters, network=MINIDNN86)
    for name, source in (("mlp", mlp), ("minidnn86", large)):
        wrong = f"network {name} does not begin with two convolutions, each with ReLU and average"
        refuses(["quantise", source, tmp_path / "out.h5"], wrong, main)


def test_the_largest_weight_of_each_filter_becomes_127(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps are alike, so the largest weight compensates for others and would end below 127."""
    used: list[tuple[np.ndarray, np.ndarray]] = []

    def spied(w: np.ndarray, products: np.ndarray, rounded: Rounding, kept: np.ndarray) -> np.ndarray:
        used.append((w, products))
        return round_with_compensation(w, products, rounded, kept)

    monkeypatch.setattr(rounding, "round_with_compensation", spied)
    graph, rng = random_graph(ALIKE, bias=False), np.random.default_rng(0)
    graph.parameters["conv1"][:] = rng.random(graph.parameters["conv1"].shape)
    graph.parameters["conv2"][..., 0, :32] = 1
    graph.parameters["conv2"][..., 1:, 32:] *= 50  # so that map 0 is rounded last
    found, ours, plain = quantise_convolution(graph, random_images(ALIKE, 50))
    assert len(used) > 1
    greatest = np.abs(found.filters.astype(int)).max(axis=(0, 1, 2))
    np.testing.assert_array_equal(greatest, 127)
    steps = found.steps.astype(np.float64)
    whole = round_with_compensation(*used[0], lambda w: np.clip(np.rint(w / steps), -127, 127) * steps)
    np.testing.assert_array_equal(found.filters.reshape(whole.shape), np.rint(whole / steps))
    assert 0 < ours < plain


# --- round


def test_round_writes_weights_that_float16_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "mine.h5", tmp_path / "mine16.h5"
    graph = random_graph(SMALL)
    save_weights(
        source,
        graph.parameters,
        network=SMALL,
        classes=CLASSES,
        input_scale=1 / 200,
        recipe="random",
        expected_correct={100: 90},
    )
    assert main(["round", str(source), str(out), "--images", "70"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == ["conv1", "conv2", "fc1", "fc2", f"wrote {out}"]
    for line in printed[:-1]:
        ours, plain = map(float, re.findall(r"[\d.]+e-\d\d", line))
        assert 0 < ours < plain
    found = load_weights(out)
    assert (found.storage, found.classes, found.input_scale) == ("float16", CLASSES, 1 / 200)
    assert found.recipe == "random; rounded to float16 with error compensation on 70 training images"
    assert found.definition == SMALL and not found.expected_correct
    for layer in round_layers(build_graph(SMALL, load_weights(source)), IMAGES[:70, None]):
        for name, array in layer.arrays.items():
            np.testing.assert_array_equal(found.arrays[name], array, strict=True)
            assert name.endswith("_bias") or (array != round_to_storage(graph.parameters, "float16")[name]).any()


def test_round_refuses_bad_options_and_files(tmp_path: Path, refuses: Refuses) -> None:
    source, narrow, out = random_weights(tmp_path / "a.h5"), trained(tmp_path / "b.h5", "mlp"), tmp_path / "out.h5"
    other = tmp_path / "other.h5"
    save_weights(other, random_graph(FLAT).parameters, network=FLAT)
    for count in ("0", "60001"):
        refuses(["round", source, out, "--images", count], f"--images {count} is not between 1 and 60,000", main)
    refuses(["round", narrow, out], "b.h5 is stored as float16 already: there is nothing to round", main)
    refuses(["round", source, narrow], "b.h5 already exists: name another file", main)
    refuses(["round", source, shipped.weights_path("lenet5")], "is a file that the project ships", main)
    wrong = "network flat reads images of 1 x 5 x 9, Fashion-MNIST's are 1 x 28 x 28: name weights of a network that"
    refuses(["round", other, out], wrong, main)
    assert not out.exists()


def test_sparsify_prunes_conv2_and_round_and_quantise_keep_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refuses: Refuses
) -> None:
    source, out = random_weights(tmp_path / "mine.h5"), tmp_path / "sparse.h5"
    assert main(["sparsify", str(source), str(out), "--images", "50"]) == 0
    *changes, wrote = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in changes] == ["conv2", "fc1", "fc2"] and wrote == f"wrote {out}"
    for line in changes:
        ours, plain = map(float, re.findall(r"[\d.]+e-\d\d", line))
        assert 0 < ours <= plain
    before, found = load_weights(source), load_weights(out)
    assert not found.expected_correct and found.definition == SMALL
    assert str(found.recipe).endswith("conv2 pruned 2:4 with error compensation on 50 training images")
    layers = sparsify_layers(build_graph(SMALL, before), IMAGES[:50, None])
    changed = {name: array for layer in layers for name, array in layer.arrays.items()}
    for name, array in {**before.arrays, **changed}.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
    again = tmp_path / "again.h5"
    for path in (out, trained(tmp_path / "mlp.h5", "mlp")):
        refuses(["sparsify", path, again], f"{path.name} has no convolution to prune", main)
    narrow, integers = tmp_path / "sparse16.h5", tmp_path / "sparse8.h5"
    assert main(["round", str(out), str(narrow), "--images", "50"]) == 0
    assert main(["quantise", str(narrow), str(integers), "--images", "50"]) == 0
    final = load_weights(integers)
    assert is_two_of_four(final.arrays["conv2"]) and final.quantised is not None
    assert is_two_of_four(final.quantised.filters) and final.storage == "float16"
    refuses(["quantise", integers, again], "sparse8.h5 has 8-bit filters already", main)
