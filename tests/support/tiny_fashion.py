"""Provide a small stand-in for Fashion-MNIST's test split, to test finding and fetching without the data set."""

from pathlib import Path

import numpy as np
import pytest

from data_tools import fashion_mnist
from data_tools.fashion_mnist import DataFile, open_split
from data_tools.idx import content_sha256, write_idx

RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 256, (40, 28, 28), np.uint8)
LABELS = RNG.integers(0, 10, 40, np.uint8)
NAMES = ("tiny-images-idx3-ubyte", "tiny-labels-idx1-ubyte")
FILES = tuple(DataFile(n, a.shape, content_sha256(a)) for n, a in zip(NAMES, (IMAGES, LABELS), strict=True))


def write(directory: Path, suffix: str = ".gz") -> Path:
    """Write the images and labels as valid IDX files to ``directory``, gzipped unless ``suffix`` is empty."""
    directory.mkdir(exist_ok=True)
    for name, array in zip(NAMES, (IMAGES, LABELS), strict=True):
        write_idx(directory / f"{name}{suffix}", array)
    return directory


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder for fetched files. No other data folder exists, no mirrors; PATH is tmp_path/bin."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("FASHION_MNIST_DIR", raising=False)
    monkeypatch.setitem(fashion_mnist.SPLITS, "test", FILES)
    monkeypatch.delitem(fashion_mnist.SPLITS, "train")
    monkeypatch.setattr(fashion_mnist, "SYSTEM_DIR", tmp_path / "system")
    monkeypatch.setattr(fashion_mnist, "MIRRORS", ())
    monkeypatch.setattr("data_tools.download.CONNECT_SECONDS", 0.5)
    monkeypatch.setattr("data_tools.download.PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr("data_tools.download.BACKOFF_SECONDS", 0.01)
    return tmp_path / "cache" / "fashion-mnist"


def names(directory: Path) -> list[str]:
    """Return the names of all files in ``directory``, including hidden ones."""
    return sorted(path.name for path in directory.iterdir())


def check_loaded() -> None:
    """Check that the split can be loaded, from wherever it is found or fetched."""
    images, labels, _ = open_split("test")
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)


def check_only_the_files(directory: Path) -> None:
    assert names(directory) == [f"{name}.gz" for name in NAMES]
