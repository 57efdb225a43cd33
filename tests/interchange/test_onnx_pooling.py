"""Test pooling with incomplete windows and padding in ONNX: export, import and ONNX Runtime compute the same."""

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
from app.interchange.source import MAX_FILE_BYTES, ImportOptions, read_source_file
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
    """Return a graph: convolution, then the pooling, then scores that depend on all of the pooling's outputs."""
    shape = (1, height, width)
    layers = (Conv2d("conv1", 1, 1), pool, Flatten("flatten"), Linear("fc1", 3), Argmax("argmax"))
    network = Network("pools", "", shape, layers, 1.0)
    inputs = prod(pool.output_shape(shape))
    matrix = np.random.default_rng(inputs).standard_normal((inputs, 3)).astype(np.float32)
    arrays = {"conv1": np.ones((1, 1, 1, 1), np.float32), "fc1": matrix}
    return build_graph(network, Weights(arrays, network.name, Path("x"), input_scale=1.0))


def graphs_with_incomplete_windows(kind: type[Pool]) -> Iterator[tuple[Pool, Graph, list[int]]]:
    """Yield pool, graph, and rows and columns beyond the border, for all small maps and windows."""
    sides = range(1, SIDE + 1)
    for height, width, window in ((h, w, p) for h in sides for w in sides for p in range(1, min(h, w) + 1)):
        for stride in range(1, SIDE + 2):
            pool = kind("pool1", window, None if stride == window else stride, True)
            beyond = [end for _, end in pool.window_overhangs((1, height, width))]
            if any(beyond):
                yield pool, graph_of(pool, height, width), beyond


@pytest.mark.parametrize("kind", KINDS)
def test_every_small_shape_is_exported_and_imported(kind: type[Pool], tmp_path: Path) -> None:
    """ONNX Runtime gives the scores of the reference; import derives ceil from the padding in the graph."""
    path, seen = tmp_path / "model.onnx", set()
    for pool, graph, beyond in graphs_with_incomplete_windows(kind):
        images = np.random.default_rng(0).integers(0, 256, (3, *graph.network.input_shape), np.uint8)
        scores, _, _ = OnnxEngine(graph).compute_chunk(images)
        expected = graph.reference(images)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        path.write_bytes(onnx_of_others(graph.network, graph.parameters, 1.0).SerializeToString())
        assert read_source_file(path, ImportOptions())[1].network.layers[1] == pool
        seen.add((min(beyond) > 0, pool.effective_stride > pool.window))
    assert seen == {(one, two) for one in (False, True) for two in (False, True)}


def pools_with_padding(kind: type[Pool], window: int) -> Iterator[Pool]:
    """Yield pools of every padding, with and without ceil and, for means, counted padding; strides alternate."""
    strides = cycle((None, 1, 2))
    for padding, extra, ceil in product(range(window), range(window), (False, True)):
        if 0 < padding + extra < window:
            layer = kind("pool1", window, next(strides), ceil, padding, extra)
            yield layer
            if isinstance(layer, AvgPool):
                yield replace(layer, count_padding=True)


@pytest.mark.parametrize("window", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_every_padding_is_exported_and_imported(kind: type[Pool], window: int, tmp_path: Path) -> None:
    """ONNX Runtime gives the scores of the reference; import may find another layer that computes the same."""
    path = tmp_path / "model.onnx"
    for at, pool in enumerate(pools_with_padding(kind, window)):
        graph = graph_of(pool, *MAPS[(at + at // 3) % len(MAPS)])
        images = np.random.default_rng(0).integers(0, 256, (3, *graph.network.input_shape), np.uint8)
        expected = graph.reference(images)
        close = {"rtol": 0, "atol": 1e-5 * np.abs(expected).max()}
        scores, _, _ = OnnxEngine(graph).compute_chunk(images)
        np.testing.assert_allclose(scores, expected, **close, err_msg=str(pool))
        model = onnx_of_others(graph.network, graph.parameters, 1.0)
        path.write_bytes(model.SerializeToString())
        if "pool1/counted" in {node.name for node in model.graph.node}:  # nodes that only this program writes
            continue
        again = replace(graph, network=read_source_file(path, ImportOptions())[1].network)
        again = replace(again, steps=again.network.steps)
        np.testing.assert_allclose(again.reference(images), expected, **close, err_msg=str(pool))


def write_model_with_pads(path: Path, pads: list[int], others: dict[str, int]) -> None:
    """Write a model whose AveragePool, with windows of 2 every 3 pixels of 4 x 4, has these attributes."""
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
def test_import_counts_padding_as_onnx_does(form: str, tmp_path: Path) -> None:
    write_model_with_pads(tmp_path / "model.onnx", *KNOWN[form])
    layer = read_source_file(tmp_path / "model.onnx", ImportOptions())[1].network.layers[1]
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
    write_model_with_pads(tmp_path / "model.onnx", *OTHERS[fault])
    with pytest.raises(UserError, match=r"node 'pool1' \(AveragePool\) has pads \[.*\]; only less than its window"):
        read_source_file(tmp_path / "model.onnx", ImportOptions())


# --- numbers in a file beside the model


GRAPH = random_graph(SMALL, bias=False)
DATA = "m.onnx.data"


def find_filters(model: Any) -> Any:
    """Return the filters of the convolution, a TensorProto."""
    return next(one for one in model.graph.initializer if one.name == "conv1.weight")


def change_external_data(one: Any, **entries: str) -> None:
    """Change entries that say where a tensor's data is."""
    about = {entry.key: entry.value for entry in one.external_data} | entries
    del one.external_data[:]
    for key, value in about.items():
        one.external_data.add(key=key, value=value)


def save_model(change: Callable[[Any], None] = lambda model: None) -> Path:
    """Save a changed model as m.onnx and its numbers as m.onnx.data, as PyTorch's exporter does; return its path."""
    model = onnx_of_others(SMALL, GRAPH.parameters, 1 / 255)
    onnx.save_model(model, "m.onnx", save_as_external_data=True, location=DATA, size_threshold=0)
    model = onnx.load("m.onnx", load_external_data=False)
    assert find_filters(model).data_location == 1
    change(model)
    Path("m.onnx").write_bytes(model.SerializeToString())
    return Path("m.onnx")


def test_numbers_in_a_file_beside_the_model_are_read() -> None:
    inside = onnx_of_others(SMALL, GRAPH.parameters, 1 / 255)
    Path("one.onnx").write_bytes(inside.SerializeToString())
    found, expected = (read_source_file(path, ImportOptions(name="x"))[1] for path in (save_model(), Path("one.onnx")))
    assert found.network == expected.network and found.origins == expected.origins
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
    assert main(["import", "m.onnx", "--out", "m.h5"]) == 0


def test_length_and_offset_of_a_whole_file_may_be_missing() -> None:
    def alone(model: Any) -> None:
        one = find_filters(model)
        begin = int(next(entry.value for entry in one.external_data if entry.key == "offset"))
        content = Path(DATA).read_bytes()[begin : begin + 4 * int(np.prod(one.dims))]
        Path("alone").write_bytes(content)
        del one.external_data[:]
        one.external_data.add(key="location", value="alone")

    found = read_source_file(save_model(alone), ImportOptions())[1].arrays["conv1"]
    np.testing.assert_array_equal(found, GRAPH.parameters["conv1"].transpose(3, 2, 0, 1))


def replace_by_link(model: Any) -> None:
    Path(DATA).rename("elsewhere")
    Path(DATA).symlink_to("elsewhere")


def enlarge_data_file(model: Any) -> None:
    os.truncate(DATA, MAX_FILE_BYTES + 1)


def replace_by_directory(model: Any) -> None:
    Path(DATA).unlink()
    Path(DATA).mkdir()


def replace_by_pipe(model: Any) -> None:
    Path(DATA).unlink()
    os.mkfifo(DATA)


def overlap_ranges(model: Any) -> None:
    for one in model.graph.initializer:
        change_external_data(one, offset="0")


def set_entry(**entries: str) -> Callable[[Any], None]:
    return lambda model: change_external_data(find_filters(model), **entries)


BAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "above": (set_entry(location="../m.onnx.data"), "no file beside it; save the model with its data in one file"),
    "absolute": (set_entry(location="/etc/passwd"), "'/etc/passwd', which is no file beside it"),
    "backslash": (set_entry(location="..\\b"), "no file beside it"),
    "no name": (set_entry(location=""), "no file beside it"),
    "the folder": (set_entry(location="."), "no file beside it"),
    "unprintable": (set_entry(location="a\0b"), "no file beside it"),
    "itself": (set_entry(location="m.onnx"), "keeps 'conv1.weight' in itself"),
    "missing": (
        set_entry(location="none"),
        "keeps 'conv1.weight' in 'none', which is not beside it; put both files in one",
    ),
    "a link": (replace_by_link, "is a link; put the file itself there"),
    "a directory": (replace_by_directory, "is a directory"),
    "a pipe": (replace_by_pipe, "is not a regular file"),
    "beyond its end": (set_entry(offset="100000"), "beyond the end of 'm.onnx.data', which has [0-9,]+ bytes"),
    "10 GB": (set_entry(length="10000000000"), "beyond the end"),
    "a large file": (enlarge_data_file, "more than the 100,66[0-9],[0-9]{3} that are read"),
    "negative": (set_entry(offset="-4"), "keeps 'conv1.weight' at '-4', which is no number of bytes"),
    "no number": (set_entry(length="1e3"), "no number of bytes"),
    "overlapping": (overlap_ranges, "where 'm.onnx.data' has another; export it again"),
    "too short": (set_entry(length="8"), "has damaged data in 'conv1.weight'"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_wrong_data_file_gives_a_one_line_error(fault: str, place: Path) -> None:
    change, message = BAD[fault]
    assert re.search(message, user_error(lambda: read_source_file(save_model(change), ImportOptions())))
    if fault != "a large file":
        assert main(["import", "m.onnx", "--out", "m.h5"]) == 2 and not (place / "m.h5").exists()


@pytest.mark.parametrize(("size", "unread"), [(7, False), (8, True), (9, True), (10, False)])
def test_windows_that_end_before_the_image_leave_pixels_unread(size: int, unread: bool) -> None:
    assert _leaves_pixels_unread([MaxPool("pool", window=4, stride=3)], 1, size) == unread
