"""Let imports compare fewer images in these tests."""

import pytest

from app.commands import import_


@pytest.fixture(autouse=True)
def few_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A converted network is compared on 7 images instead of 64: an array in another order shows in the first."""
    monkeypatch.setattr(import_, "IMAGES", 7)
