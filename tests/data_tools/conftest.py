"""Fixtures for tests of ``data_tools``."""

from pathlib import Path

import pytest

from data_tools import calibration
from data_tools.fashion_mnist import Split
from tests.support.bundle_for_tests import IMAGES, TRUTH


@pytest.fixture
def training_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Random training images; nobody asks for others."""
    splits = {"train": Split(IMAGES, TRUTH, tmp_path)}
    monkeypatch.setattr(calibration, "open_split", lambda split, data_dir: splits[split])
