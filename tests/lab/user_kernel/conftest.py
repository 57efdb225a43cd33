"""Fixtures: a user's kernel, and what its process would answer on a card."""

from pathlib import Path
from typing import Any

import pytest

from app.lab.user_kernel.child import CardProcess
from app.lab.user_kernel.row import find_row
from app.lab.user_kernel.template import kernel_template


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A user's file, a copy of ``direct``."""
    path = tmp_path / "mine.cu"
    path.write_text(kernel_template(find_row("direct"), "mine.cu"))
    return path


@pytest.fixture
def answers(card: type[Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the process of the user's kernel does on this card: ``check`` and ``time``, a value or an exception."""
    told: dict[str, Any] = {
        "check_user_case": None,
        "time_in_process": {"error": 0.25, "samples": [2.5] * 10, "mhz": [1980.2, 1755]},
    }

    def call(_: CardProcess, function: Any, *arguments: Any, times: int = 1) -> Any:
        found = told[function.__name__]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(CardProcess, "call", call)
    return told
