"""Pooling with incomplete windows and padding in ONNX: one network there, in import and in ONNX Runtime."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.engine.onnx_runtime import OnnxEngine
from app.interchange.chain import _leaves_pixels_unread
from app.interchange.source import MAX_FILE_BYTES, ImportOptions, read
from app.layers import Argmax, AvgPool, Conv2d, Flatten, Linear, MaxPool
from app.layers.pool import Pool
from app.network.graph import Graph, build_graph
from app.network.network import Network
from app.network.weights import Weights
from tests.support.foreign_files import SMALL, onnx_of_others
from tests.support.networks_for_tests import random_graph
from tests.support.shell import user_error

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
SIDE = 5
KINDS = (MaxPool, AvgPool)
MAPS = ((4, 4), (5, 3), (7, 6))


def graph_of(pool: Pool, height: int, width: int) -> Graph:
    """Images → a layer with weights, which must come first → the pooling → scores that depend on all of its outputs."""
    shape = (1, height, width)
    layers = (Conv2d("conv1", 1, 1), pool, Flatten("flatten"), Linear("fc1", 3), Argmax("argmax"))
    network = Network("pools", "", shape, layers, 1.0)
    inputs = prod(pool.output_shape(shape))
    matrix = np.random.default_rng(inputs).standard_normal((inputs, 3)).astype(np.float32)
    arrays = {"conv1": np.ones((1, 1, 1, 1), np.float32), "fc1": matrix}
    return build_graph(network, Weights(arrays, network.name, Path("x"), input_scale=1.0))


def incomplete(kind: type[Pool]) -> Iterator[tuple[Pool, Graph, list[int]]]:
    """Every network of a small map, a window and a stride whose last windows reach over a border, and how far."""
    sides = range(1, SIDE + 1)
    for height, width, window in ((h, w, p) for h in sides for w in sides for p in range(1, min(h, w) + 1)):
        for stride in range(1, SIDE + 2):
            pool = kind("pool1", window, None if stride == window else stride, True)
            beyond = [end for _, end in pool.window_overhangs((1, height, width))]
            if any(beyond):
                yield pool, graph_of(pool, height, width), beyond


@pytest.mark.parametrize("kind", KINDS)
def test_every_small_shape_is_exported_and_comes_back(kind: type[Pool], tmp_path: Path) -> None:
    """As ONNX Runtime computes it; it comes back from the graph alone, whose padding means ceil."""
    path, seen = tmp_path / "model.onnx", set()
    for pool, graph, beyond in incomplete(kind):
        images = np.random.default_rng(0).integers(0, 256, (3, *graph.network.input_shape), np.uint8)
        scores, _, _ = OnnxEngine(graph).compute_chunk(images)
        expected = graph.reference(images)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        path.write_bytes(onnx_of_others(graph.network, graph.parameters, 1.0).SerializeToString())
        assert read(path, ImportOptions())[1].network.layers[1] == pool
        seen.add((min(beyond) > 0, pool.effective_stride > pool.window))
    assert seen == {(one, two) for one in (False, True) for two in (False, True)}


def padded(kind: type[Pool], window: int) -> Iterator[Pool]:
    """Every padding of windows of that size, with and without ceil and, of a mean, its count; strides take turns."""
    strides = cycle((None, 1, 2))
    for padding, extra, ceil in product(range(window), range(window), (False, True)):
        if 0 < padding + extra < window:
            layer = kind("pool1", window, next(strides), ceil, padding, extra)
            yield layer
            if isinstance(layer, AvgPool):
                yield replace(layer, count_padding=True)


@pytest.mark.parametrize("window", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_exported_and_comes_back(kind: type[Pool], window: int, tmp_path: Path) -> None:
    """As ONNX Runtime computes it; what comes back from the graph alone may say it in other words."""
    path = tmp_path / "model.onnx"
    for at, pool in enumerate(padded(kind, window)):
        graph = graph_of(pool, *MAPS[(at + at // 3) % len(MAPS)])
        images = np.random.default_rng(0).integers(0, 256, (3, *graph.network.input_shape), np.uint8)
        expected = graph.reference(images)
        close = {"rtol": 0, "atol": 1e-5 * np.abs(expected).max()}
        scores, _, _ = OnnxEngine(graph).compute_chunk(images)
        np.testing.assert_allclose(scores, expected, **close, err_msg=str(pool))
        model = onnx_of_others(graph.network, graph.parameters, 1.0)
        path.write_bytes(model.SerializeToString())
        if "pool1/counted" in {node.name for node in model.graph.node}:  # a form of this program alone
            continue
        again = replace(graph, network=read(path, ImportOptions())[1].network)
        again = replace(again, steps=again.network.steps)
        np.testing.assert_allclose(again.reference(images), expected, **close, err_msg=str(pool))


def changed(path: Path, pads: list[int], others: dict[str, int]) -> None:
    """Store a model whose mean, of windows of 2 every 3 pixels of 4 x 4, has these attributes."""
    from onnx import helper

    graph = graph_of(AvgPool("pool1", 2, 3, True), 4, 4)
    model = onnx_of_others(graph.network, graph.parameters, 1.0)
    node = next(node for node in model.graph.node if node.op_type == "AveragePool")
    kept = [one for one in node.attribute if one.name != "pads"]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(*pair) for pair in ({"pads": pads} | others).items())])
    path.write_bytes(model.SerializeToString())


KNOWN = {
    "at the end": ([0, 0, 1, 1], {}),
    "and ceil_mode": ([0, 0, 1, 1], {"ceil_mode": 1}),
    "and counted": ([0, 0, 1, 1], {"count_include_pad": 1}),
    "unseen": ([1, 1, 0, 0], {}),
}


@pytest.mark.parametrize("form", KNOWN)
def test_padding_is_what_the_windows_see(form: str, tmp_path: Path) -> None:
    changed(tmp_path / "model.onnx", *KNOWN[form])
    layer = read(tmp_path / "model.onnx", ImportOptions())[1].network.layers[1]
    assert isinstance(layer, AvgPool) and layer.output_shape((1, 4, 4)) == (1, 2, 2)
    counts = [[2, 2], [2, 2]] if form == "unseen" else [[4, 4], [4, 4]] if "counted" in form else [[4, 2], [2, 1]]
    assert (layer.window_pixel_counts((1, 4, 4)) == counts).all() or form == "unseen"


OTHERS: dict[str, tuple[list[int], dict[str, int]]] = {
    "at the start of rows alone": ([1, 0, 0, 0], {}),
    "as wide as a window": ([0, 0, 2, 1], {}),
    "of one axis": ([0, 0, 1, 0], {}),
    "negative": ([0, 0, -1, 0], {}),
}


@pytest.mark.parametrize("fault", OTHERS)
def test_other_padding_is_refused(fault: str, tmp_path: Path) -> None:
    changed(tmp_path / "model.onnx", *OTHERS[fault])
    with pytest.raises(UserError, match=r"node 'pool1' \(AveragePool\) has pads \[.*\]; only less than its window"):
        read(tmp_path / "model.onnx", ImportOptions())


# --- Numbers in a file beside the model


GRAPH = random_graph(SMALL, bias=False)
DATA = "m.onnx.data"


def tensor(model: Any) -> Any:
    """The filters of the convolution."""
    return next(one for one in model.graph.initializer if one.name == "conv1.weight")


def point(one: Any, **entries: str) -> None:
    """Change entries of a tensor's place."""
    about = {entry.key: entry.value for entry in one.external_data} | entries
    del one.external_data[:]
    for key, value in about.items():
        one.external_data.add(key=key, value=value)


def saved(change: Callable[[Any], None] = lambda model: None) -> Path:
    """The model in m.onnx, its numbers in m.onnx.data, as PyTorch's exporter writes them, but for a change."""
    model = onnx_of_others(SMALL, GRAPH.parameters, 1 / 255)
    onnx.save_model(model, "m.onnx", save_as_external_data=True, location=DATA, size_threshold=0)
    model = onnx.load("m.onnx", load_external_data=False)
    assert tensor(model).data_location == 1
    change(model)
    Path("m.onnx").write_bytes(model.SerializeToString())
    return Path("m.onnx")


def test_numbers_beside_the_model_are_its_own() -> None:
    inside = onnx_of_others(SMALL, GRAPH.parameters, 1 / 255)
    Path("one.onnx").write_bytes(inside.SerializeToString())
    found, expected = (read(path, ImportOptions(name="x"))[1] for path in (saved(), Path("one.onnx")))
    assert found.network == expected.network and found.origins == expected.origins
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
    assert main(["import", "m.onnx", "--out", "m.h5"]) == 0


def test_length_and_offset_may_be_missing() -> None:
    """The whole file."""

    def alone(model: Any) -> None:
        one = tensor(model)
        begin = int(next(entry.value for entry in one.external_data if entry.key == "offset"))
        content = Path(DATA).read_bytes()[begin : begin + 4 * int(np.prod(one.dims))]
        Path("alone").write_bytes(content)
        del one.external_data[:]
        one.external_data.add(key="location", value="alone")

    found = read(saved(alone), ImportOptions())[1].arrays["conv1"]
    np.testing.assert_array_equal(found, GRAPH.parameters["conv1"].transpose(3, 2, 0, 1))


def linked(model: Any) -> None:
    Path(DATA).rename("elsewhere")
    Path(DATA).symlink_to("elsewhere")


def large(model: Any) -> None:
    os.truncate(DATA, MAX_FILE_BYTES + 1)


def directory(model: Any) -> None:
    Path(DATA).unlink()
    Path(DATA).mkdir()


def pipe(model: Any) -> None:
    Path(DATA).unlink()
    os.mkfifo(DATA)


def overlapping(model: Any) -> None:
    for one in model.graph.initializer:
        point(one, offset="0")


def at(**entries: str) -> Callable[[Any], None]:
    return lambda model: point(tensor(model), **entries)


BAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "above": (at(location="../m.onnx.data"), "no file beside it; save the model with its data in one file"),
    "absolute": (at(location="/etc/passwd"), "'/etc/passwd', which is no file beside it"),
    "backslash": (at(location="..\\b"), "no file beside it"),
    "no name": (at(location=""), "no file beside it"),
    "the folder": (at(location="."), "no file beside it"),
    "unprintable": (at(location="a\0b"), "no file beside it"),
    "itself": (at(location="m.onnx"), "keeps 'conv1.weight' in itself"),
    "missing": (at(location="none"), "keeps 'conv1.weight' in 'none', which is not beside it; put both files in one"),
    "a link": (linked, "is a link; put the file itself there"),
    "a directory": (directory, "is a directory"),
    "a pipe": (pipe, "is not a regular file"),
    "beyond its end": (at(offset="100000"), "beyond the end of 'm.onnx.data', which has [0-9,]+ bytes"),
    "10 GB": (at(length="10000000000"), "beyond the end"),
    "a large file": (large, "more than the 100,66[0-9],[0-9]{3} that are read"),
    "negative": (at(offset="-4"), "keeps 'conv1.weight' at '-4', which is no number of bytes"),
    "no number": (at(length="1e3"), "no number of bytes"),
    "overlapping": (overlapping, "where 'm.onnx.data' has another; export it again"),
    "too short": (at(length="8"), "has damaged data in 'conv1.weight'"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_wrong_place_is_one_line(fault: str, place: Path) -> None:
    change, message = BAD[fault]
    assert re.search(message, user_error(lambda: read(saved(change), ImportOptions())))
    if fault != "a large file":
        assert main(["import", "m.onnx", "--out", "m.h5"]) == 2 and not (place / "m.h5").exists()


@pytest.mark.parametrize(("size", "unread"), [(7, False), (8, True), (9, True), (10, False)])
def test_windows_that_end_before_the_image_leave_pixels_unread(size: int, unread: bool) -> None:
    assert _leaves_pixels_unread([MaxPool("pool", window=4, stride=3)], 1, size) == unread
