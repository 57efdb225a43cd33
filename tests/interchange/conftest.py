"""Run every test in an empty folder, and let imports compare fewer images."""

from pathlib import Path

import pytest

from app.tools import import_


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def compare_few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports compare 7 images instead of 64: an array in a wrong order already shows in the first."""
    monkeypatch.setattr(import_, "IMAGES", 7)
