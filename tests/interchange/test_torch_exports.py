"""Twenty PyTorch models through today's exporters, where PyTorch is installed: labels and logits are PyTorch's."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.interchange.source import ImportOptions
from app.network.graph import build_graph
from app.network.weights import Weights
from app.tools.import_ import largest_difference, read_foreign_file

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from tests.support.torch_models import MODELS, export, trained  # noqa: E402 - it imports torch

IMAGES = 1000
CLOSE = 1e-5  # relative to the largest logit: float32 rounding of both
EXPORTERS: dict[str, dict[str, Any]] = {
    "default": {},
    "any batch": {"dynamic_shapes": ({0: "batch"},)},
    "opset 24": {"opset_version": 24},
    "old": {"dynamo": False},
    "old, opset 13, any batch": {
        "dynamo": False,
        "opset_version": 13,
        "input_names": ["images"],
        "dynamic_axes": {"images": {0: "batch"}},
    },
}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", MODELS)
def test_the_network_is_pytorch_s(name: str, exporter: str, place: Path) -> None:
    shape, _ = MODELS[name]
    model, path = trained(name), place / "model.onnx"
    logging.disable(logging.WARNING)  # of exporters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(model, shape, str(path), **EXPORTERS[exporter])
    logging.disable(logging.NOTSET)
    _, source, found = read_foreign_file(path, ImportOptions())
    weights = Weights({one.name: one.array for one in found}, "x", path, input_scale=source.scale)
    graph = build_graph(source.network, weights)
    largest_difference(source, graph)
    images = np.random.default_rng(1).integers(0, 256, (IMAGES, *shape), np.uint8)
    with torch.no_grad():
        expected = model.double()(torch.from_numpy(images).double() / 255).numpy()
    ours = graph.reference(images)
    if name.startswith("log-softmax"):
        ours -= np.log(np.exp(ours).sum(axis=1, keepdims=True))
    size = np.abs(expected).max()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=CLOSE * size)
    best = np.sort(expected, axis=1)
    ties = best[:, -1] - best[:, -2] < 2 * CLOSE * size
    assert ((ours.argmax(axis=1) == expected.argmax(axis=1)) | ties).all() and ties.mean() < 0.01
