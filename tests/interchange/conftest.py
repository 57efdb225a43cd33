"""Run every test in a folder of its own, and let imports compare fewer images."""

from pathlib import Path

import pytest

from app.tools import import_


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def few_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A converted network is compared on 7 images instead of 64: an array in another order shows in the first."""
    monkeypatch.setattr(import_, "IMAGES", 7)
