"""Compare the width of printed tables with the terminal's."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from app.cli import main
from app.terminal.text import UNLIMITED, WIDTH


def check_widths(as_text: Callable[[Any, int], str], document: Mapping[str, Any]) -> str:
    """Check that lines fit ``WIDTH`` columns and that ``--wide`` omits and cuts nothing; return the wide text."""
    assert all(len(line) <= WIDTH for line in as_text(document, WIDTH).splitlines())
    wide = as_text(document, UNLIMITED)
    assert "--wide adds" not in wide and not any(word.endswith("…") and len(word) > 1 for word in wide.split())
    return wide


def printed_wide(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command prints with ``--wide``; check that without it no line exceeds ``WIDTH`` columns."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COLUMNS", str(WIDTH))
        assert main(command.split()) == 0
        narrow = capsys.readouterr().out
        assert all(len(line) <= WIDTH for line in narrow.splitlines())
        assert main([*command.split(), "--wide", *["--overwrite"] * ("--json" in command)]) == 0
    wide = capsys.readouterr().out
    assert "--wide adds" not in wide
    return wide
