"""Fixtures of these tests."""

from pathlib import Path

import pytest

from tests.support.tiny_fashion import isolate


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where fetched files belong; nothing else is found, and there are no mirrors."""
    return isolate(tmp_path, monkeypatch)
