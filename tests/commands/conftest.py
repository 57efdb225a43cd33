"""Define the empty folder in which the commands of these tests run."""

from pathlib import Path

import pytest


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that is the working directory, home, cache and place of temporary files."""
    monkeypatch.chdir(tmp_path)
    for variable in ("HOME", "LENET_CACHE_DIR", "TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.delenv("FASHION_MNIST_DIR", raising=False)
    return tmp_path
