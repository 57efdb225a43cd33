"""Pooling with incomplete windows and padding in ONNX: one network there, in import and in ONNX Runtime."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.engine.onnx_runtime import OnnxEngine
from app.interchange.source import Asked, read
from app.layers import Argmax, AvgPool, Conv2d, Flatten, Linear, MaxPool
from app.layers.pool import Pool
from app.network.graph import Graph, build_graph
from app.network.network import Network
from app.network.weights import Weights
from tests.support.foreign_files import onnx_of_others

pytest.importorskip("onnx")
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
            beyond = [end for _, end in pool.margins((1, height, width))]
            if any(beyond):
                yield pool, graph_of(pool, height, width), beyond


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_runtime_computes_every_small_shape(kind: type[Pool]) -> None:
    seen = set()
    for pool, graph, beyond in incomplete(kind):
        images = np.random.default_rng(0).integers(0, 256, (3, *graph.network.input_shape), np.uint8)
        scores, _, _ = OnnxEngine(graph).compute(images)
        expected = graph.reference(images)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        seen.add((min(beyond) > 0, pool.effective_stride > pool.window))
    assert seen == {(one, two) for one in (False, True) for two in (False, True)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_small_shape_comes_back(kind: type[Pool], tmp_path: Path) -> None:
    """From the graph alone: its padding means ceil."""
    path = tmp_path / "model.onnx"
    for pool, graph, _ in incomplete(kind):
        path.write_bytes(onnx_of_others(graph.network, graph.parameters, 1.0).SerializeToString())
        assert read(path, Asked())[1].network.layers[1] == pool


def padded(kind: type[Pool], window: int) -> Iterator[Pool]:
    """Every padding of windows of that size, with and without ceil and, of a mean, its count."""
    for padding, extra, ceil in product(range(window), range(window), (False, True)):
        if 0 < padding + extra < window:
            for stride in (None, 1, 2):
                layer = kind("pool1", window, stride, ceil, padding, extra)
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
        scores, _, _ = OnnxEngine(graph).compute(images)
        np.testing.assert_allclose(scores, expected, **close, err_msg=str(pool))
        model = onnx_of_others(graph.network, graph.parameters, 1.0)
        path.write_bytes(model.SerializeToString())
        if "pool1/counted" in {node.name for node in model.graph.node}:  # a form of this program alone
            continue
        again = replace(graph, network=read(path, Asked())[1].network)
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
    layer = read(tmp_path / "model.onnx", Asked())[1].network.layers[1]
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
        read(tmp_path / "model.onnx", Asked())
