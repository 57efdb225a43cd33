"""Test the README's lines that convert a PyTorch model, against the same model in PyTorch's own layout."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from app.network.definitions import LENET5
from app.network.graph import build
from app.network.weights import load_weights
from app.runtime.cpu_session import CpuSession
from tests.support.networks_for_tests import random_images

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHAPES = {"conv1": (32, 1, 5, 5), "conv2": (64, 32, 5, 5), "fc1": (128, 1024), "fc2": (10, 128)}
State = dict[str, np.ndarray]


@pytest.fixture
def state() -> State:
    """Random parameters by the names and in the layouts of a PyTorch LeNet: out first, then in, H, W."""
    rng = np.random.default_rng(8)
    found: State = {}
    for name, shape in SHAPES.items():
        found[f"{name}.weight"] = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        found[f"{name}.bias"] = (rng.standard_normal(shape[0]) / 10).astype(np.float32)
    found["fc2.bias"] -= nchw_logits(found, random_images(LENET5, 50, seed=4)).mean(axis=0).astype(np.float32)
    return found


def nchw_logits(state: State, images: np.ndarray) -> np.ndarray:
    """(B, 1, 28, 28) uint8 → (B, 10) as PyTorch computes it: N, C, H, W throughout, flattened in this order."""
    x = images / 255
    for name in ("conv1", "conv2"):
        windows = np.lib.stride_tricks.sliding_window_view(x, (5, 5), axis=(2, 3))
        x = np.einsum("bchwpq,ocpq->bohw", windows, state[f"{name}.weight"], optimize=True)
        x = np.maximum(x + state[f"{name}.bias"][:, None, None], 0)
        batch, maps, height, width = x.shape
        x = x.reshape(batch, maps, height // 2, 2, width // 2, 2).mean(axis=(3, 5))
    x = np.maximum(x.reshape(len(x), -1) @ state["fc1.weight"].T + state["fc1.bias"], 0)
    logits: np.ndarray = x @ state["fc2.weight"].T + state["fc2.bias"]
    return logits


def convert(state: State, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    """Run the lines, with a stand-in for PyTorch whose tensors know ``numpy()``."""

    def load(path: str, map_location: str) -> dict[str, SimpleNamespace]:
        assert (path, map_location) == ("lenet5.pt", "cpu")
        return {name: SimpleNamespace(numpy=lambda array=array: array) for name, array in state.items()}

    torch = ModuleType("torch")
    torch.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    exec(compile(lines, "README.md", "exec"), {})


@pytest.mark.parametrize("turned", [True, False])
def test_the_lines_of_the_readme(turned: bool, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every label is the original's; without turning fc1's rows round nearly none is."""
    monkeypatch.chdir(tmp_path)
    (lines,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    if not turned:
        assert "fc1.transpose(2, 3, 1, 0)" in lines
        lines = lines.replace("fc1.transpose(2, 3, 1, 0)", "fc1.transpose(1, 2, 3, 0)")
    convert(state, monkeypatch, lines)
    images = random_images(LENET5, 100)
    expected = nchw_logits(state, images)
    graph = build(LENET5, load_weights(tmp_path / "model.h5"))
    assert bool(np.allclose(graph.reference(images), expected, rtol=0, atol=1e-9)) is turned
    labels = np.empty(100, np.uint8)
    CpuSession(graph).run(images, labels)
    same = (labels == expected.argmax(axis=1)).mean()
    assert same == 1 if turned else same < 0.9
    assert len(np.unique(expected.argmax(axis=1))) > 3
