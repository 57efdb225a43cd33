"""Provide a separate folder of shipped weights for tests: random weights of two networks."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from app.files import shipped
from app.network.definitions import NETWORKS
from app.network.weights import save_weights
from data_tools import bundle
from data_tools.__main__ import main as data_tools
from data_tools.fashion_mnist import Split
from tests.support.networks_for_tests import random_graph

RNG = np.random.default_rng(5)
IMAGES, TRUTH = RNG.integers(0, 256, (130, 28, 28), np.uint8), RNG.integers(0, 10, 130, np.uint8)
STORAGE = {"lenet5": "float32", "mlp": "float16"}
FILES = {"SHA256SUMS", *(f"{name}_fashion{part}.h5" for name in STORAGE for part in ("", "_reference"))}


def trained(path: Path, network: str) -> Path:
    """Write random weights as ``train`` writes them, without promised counts."""
    parameters = random_graph(NETWORKS[network]).parameters
    save_weights(path, parameters, network=NETWORKS[network], recipe="random", storage=STORAGE[network])
    return path


def ship_from(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Ship weights in ``weights`` in the folder; the test images are random."""
    patch.setattr(bundle, "open_split", lambda split, data_dir: Split(IMAGES, TRUTH, folder))
    patch.setattr(shipped, "FOLDER", folder / "weights")


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the weights of two networks, and these as shipped; tests take copies."""
    folder = tmp_path_factory.mktemp("bundled")
    (folder / "weights").mkdir()
    files = [trained(folder / f"{network}.h5", network) for network in STORAGE]
    with pytest.MonkeyPatch.context() as patch:
        ship_from(folder, patch)
        assert data_tools(["bundle", *map(str, files)]) == 0
    return folder


@pytest.fixture
def release(bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of shipped weights of two networks, written as the real ones are; test images are random."""
    shutil.copytree(bundled, tmp_path, dirs_exist_ok=True)
    ship_from(tmp_path, monkeypatch)
    return tmp_path / "weights"
