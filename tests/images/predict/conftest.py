"""Define fixtures that run ``main.py predict`` in an empty folder, and the first test images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.cli import main
from data_tools.fashion_mnist import open_split

Predict = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fashion(first_hundred: None) -> np.ndarray:
    """Return the first hundred test images, (100, 28, 28) uint8."""
    return open_split("test")[0]


@pytest.fixture
def predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Predict:
    """Return a function that runs ``predict`` in an empty folder and returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, where: str = "--device cpu") -> tuple[int, str, str]:
        capsys.readouterr()
        return (main(["predict", *where.split(), *arguments]), *capsys.readouterr())

    return run
