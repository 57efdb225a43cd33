"""Exit codes: 2 for what the user can put right, 3 for a bug; 1 is kept for a failed accuracy check."""

from __future__ import annotations

from typing import NoReturn

import pytest

from app.console import guarded
from app.errors import UserError


def fails_with(error: BaseException) -> int:
    def body() -> NoReturn:
        raise error

    return guarded(body)


def test_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert [guarded(lambda code=code: code) for code in (0, 1)] == [0, 1]  # type: ignore[misc]
    assert fails_with(UserError("wrong; do this")) == 2
    assert capsys.readouterr().err == "error: wrong; do this\n"
    assert fails_with(ModuleNotFoundError("No module named 'numpy'", name="numpy")) == 2
    assert capsys.readouterr().err == ("error: numpy is not installed here: run make run, then . .venv/bin/activate\n")


@pytest.mark.parametrize(
    "bug", [ZeroDivisionError("a bug"), ModuleNotFoundError("x", name="app.nowhere"), FileNotFoundError(2, "x", "file")]
)
def test_a_bug_shows_where_it_is(bug: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert fails_with(bug) == 3
    assert "Traceback" in capsys.readouterr().err
