"""Run the commands of these tests in an empty folder."""

from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, home and cache of the run."""
    monkeypatch.chdir(tmp_path)
    for variable in ("HOME", "LENET_CACHE_DIR", "TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.delenv("FASHION_MNIST_DIR", raising=False)
    return tmp_path
