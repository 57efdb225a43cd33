"""Files as exporters wrote them: exported.zip has one of each version, and what its maker computed with each."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from app.interchange.source import Asked
from app.network.graph import build_graph
from app.network.weights import Weights
from app.tools.import_ import largest_difference, read_foreign

ARCHIVE = zipfile.ZipFile(Path(__file__).with_name("exported.zip"))
EXPECTED = json.loads(ARCHIVE.read("expected.json"))


def pattern(count: int, shape: tuple[int, ...]) -> np.ndarray:
    """(count, *shape) bytes that any program can make."""
    size = count * int(np.prod(shape))
    return (np.arange(size, dtype=np.int64) ** 2 * 37 % 251).astype(np.uint8).reshape(count, *shape)


@pytest.mark.parametrize("name", EXPECTED)
def test_its_logits_are_its_maker_s(name: str, place: Path) -> None:
    if name.endswith(".onnx"):
        pytest.importorskip("onnx")
    ARCHIVE.extractall(place)
    expected = np.array(EXPECTED[name])
    _, source, found = read_foreign(place / name, Asked(name="m"))
    arrays = {one.name: one.array for one in found}
    graph = build_graph(source.network, Weights(arrays, "m", place / name, input_scale=source.scale))
    largest_difference(source, graph)
    channels, *sides = graph.network.input_shape
    images = pattern(len(expected), (channels, *sides))
    if not name.startswith("torch"):  # Keras' images are (H, W, C)
        images = pattern(len(expected), (*sides, channels)).transpose(0, 3, 1, 2)
    ours = graph.reference(images)
    if name.startswith("torch"):  # its last layer is a log-softmax, which import leaves out
        ours -= np.log(np.exp(ours).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
