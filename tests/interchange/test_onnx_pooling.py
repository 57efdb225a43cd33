"""Pooling with incomplete windows in ONNX, on every small shape: one network there, in import and in ONNX Runtime."""

from collections.abc import Iterator
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
            beyond = [end for _, end in pool.end_padding((1, height, width))]
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


OTHERS = {
    "at the start": ([1, 1, 0, 0], {}),
    "beyond the last windows": ([0, 0, 2, 1], {}),
    "of one axis": ([0, 0, 1, 0], {}),
    "and ceil_mode": ([0, 0, 1, 1], {"ceil_mode": 1}),
    "and counted": ([0, 0, 1, 1], {"count_include_pad": 1}),
}


@pytest.mark.parametrize("fault", OTHERS)
def test_other_padding_is_refused(fault: str, tmp_path: Path) -> None:
    from onnx import helper

    pads, others = OTHERS[fault]
    graph = graph_of(AvgPool("pool1", 2, 3, True), 4, 4)
    model = onnx_of_others(graph.network, graph.parameters, 1.0)
    node = next(node for node in model.graph.node if node.op_type == "AveragePool")
    kept = [one for one in node.attribute if one.name != "pads"]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(*pair) for pair in ({"pads": pads} | others).items())])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"node 'pool1' \(AveragePool\) has (pads|count_include_pad) '.*'; only "):
        read(path, Asked())
