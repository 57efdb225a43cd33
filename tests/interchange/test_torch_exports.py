"""Compare models from PyTorch's ONNX exporters with PyTorch itself: import gives the same scores and labels."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.foreign_files import imported

GREY, COLOUR, SMALL = (1, 28, 28), (3, 32, 32), (1, 20, 20)


class Called(nn.Module):
    """A module whose forward pass is a function of its layers."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.called = forward

    def forward(self, x: Tensor) -> Tensor:
        """Return the function's result for x."""
        return self.called(self, x)


def _two_convolutions() -> dict[str, nn.Module]:
    return {"conv1": nn.Conv2d(1, 6, 5), "conv2": nn.Conv2d(6, 12, 5)}


def _use_convolutions(net: Any, x: Tensor) -> Tensor:
    x = functional.max_pool2d(torch.relu(net.conv1(x)), 2)
    return functional.max_pool2d(torch.relu(net.conv2(x)), 2)


def _use_view(net: Any, x: Tensor) -> Tensor:
    x = _use_convolutions(net, x)
    return net.fc(x.view(x.size(0), -1))


def _use_sizes(net: Any, x: Tensor) -> Tensor:
    x = _use_convolutions(net, x)
    return net.fc(x.view(-1, x.size(1) * x.size(2) * x.size(3)))


def _use_log_softmax(net: Any, x: Tensor) -> Tensor:
    x = functional.dropout(torch.flatten(_use_convolutions(net, x), 1), training=net.training)
    return functional.log_softmax(net.fc(x), dim=1)


def _use_normalising(net: Any, x: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in ((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)))
    return net.body((x - mean) / deviation)


def _use_mean(net: Any, x: Tensor) -> Tensor:
    return net.fc(torch.relu(net.conv2(torch.relu(net.conv1(x)))).mean(dim=(2, 3)))


def _use_squeeze(net: Any, x: Tensor) -> Tensor:
    return net.fc(functional.adaptive_avg_pool2d(torch.relu(net.conv1(x)), 1).squeeze(-1).squeeze(-1))


def _use_clamp(net: Any, x: Tensor) -> Tensor:
    x = torch.clamp(net.conv1(functional.pad(x, (2, 2, 2, 2))), min=0)
    return net.fc(functional.max_pool2d(x, 2).flatten(1))


def _body_of(channels: int, maps: int, features: int, padding: int = 0) -> nn.Module:
    first = nn.Conv2d(channels, maps, 3, padding=padding)
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(features, 10))


def _build_lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5, bias=False), nn.ReLU6()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Sigmoid(), nn.Linear(120, 84), nn.Tanh()),
        nn.Linear(84, 10),
    )


# What is special about a model → shape of an image, function that returns the model.
MODELS: dict[str, tuple[tuple[int, int, int], Callable[[], nn.Module]]] = {
    "every activation": (GREY, _build_lenet),
    "leaky relu, padded maximum": (
        GREY,
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.2), nn.MaxPool2d(3, 2, 1)),
            *(nn.Conv2d(8, 12, 3, padding="same"), nn.PReLU(), nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
            *(nn.Flatten(), nn.Linear(588, 10)),
        ),
    ),
    "zeros around, clamped": (GREY, lambda: Called(_use_clamp, conv1=nn.Conv2d(1, 6, 5), fc=nn.Linear(1176, 10))),
    "padded mean, ceil": (
        COLOUR,
        lambda: nn.Sequential(
            *(nn.ZeroPad2d((1, 2, 1, 2)), nn.Conv2d(3, 6, 4), nn.Tanh(), nn.AvgPool2d(3, 2, 1), nn.ReLU()),
            *(nn.MaxPool2d(3, 2, ceil_mode=True), nn.Flatten(), nn.Linear(384, 10)),
        ),
    ),
    "batch norm": (
        GREY,
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(576, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, 10)),
        ),
    ),
    "batch norm behind relu": (
        GREY,
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1)),
            *(nn.ReLU(), nn.BatchNorm2d(16), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(576, 10)),
        ),
    ),
    "batch norm first": (GREY, lambda: nn.Sequential(nn.BatchNorm2d(1), _body_of(1, 8, 1568, padding=1))),
    "log-softmax, dropout": (GREY, lambda: Called(_use_log_softmax, **_two_convolutions(), fc=nn.Linear(192, 10))),
    "view by size": (GREY, lambda: Called(_use_view, **_two_convolutions(), fc=nn.Linear(192, 10))),
    "view by count": (GREY, lambda: Called(_use_sizes, **_two_convolutions(), fc=nn.Linear(192, 10))),
    "normalisation, padding": (COLOUR, lambda: Called(_use_normalising, body=_body_of(3, 8, 2048, padding=1))),
    "global average": (
        SMALL,
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 10, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Linear(10, 10)),
        ),
    ),
    "mean over maps": (
        SMALL,
        lambda: Called(_use_mean, conv1=nn.Conv2d(1, 8, 3), conv2=nn.Conv2d(8, 16, 3), fc=nn.Linear(16, 10)),
    ),
    "squeezed": (SMALL, lambda: Called(_use_squeeze, conv1=nn.Conv2d(1, 16, 5), fc=nn.Linear(16, 10))),
}


def build_trained_model(name: str, seed: int = 0) -> nn.Module:
    """Return a model in evaluation mode, with random weights and batch normalisations that saw random images."""
    torch.manual_seed(seed)
    shape, make = MODELS[name]
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -1.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.rand(64, *shape))
    return model.eval()


IMAGES = 1000
CLOSE = 1e-5  # allowed difference ÷ largest logit: both round to float32
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
def test_exported_models_give_the_scores_of_pytorch(name: str, exporter: str, place: Path) -> None:
    shape, _ = MODELS[name]
    model, path = build_trained_model(name), place / "model.onnx"
    logging.disable(logging.WARNING)  # warnings of exporters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.rand(1, *shape),), str(path), **EXPORTERS[exporter])
    logging.disable(logging.NOTSET)
    _, graph = imported(path)
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
