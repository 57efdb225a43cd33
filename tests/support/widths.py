"""Compare the width of printed tables with the terminal's."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from app.cli import main
from app.terminal.text import UNLIMITED, WIDTH


def check_widths(as_text: Callable[[Any, int], str], document: Mapping[str, Any]) -> str:
    """No line is over ``WIDTH`` columns, and ``--wide`` leaves out no column and cuts no cell; the wide text."""
    assert all(len(line) <= WIDTH for line in as_text(document, WIDTH).splitlines())
    wide = as_text(document, UNLIMITED)
    assert "--wide adds" not in wide and not any(word.endswith("…") and len(word) > 1 for word in wide.split())
    return wide


def printed_wide(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints with ``--wide``. Without it no line is wider than a terminal of ``WIDTH`` columns."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COLUMNS", str(WIDTH))
        assert main(command.split()) == 0
        narrow = capsys.readouterr().out
        assert all(len(line) <= WIDTH for line in narrow.splitlines())
        assert main([*command.split(), "--wide", *["--overwrite"] * ("--json" in command)]) == 0
    wide = capsys.readouterr().out
    assert "--wide adds" not in wide
    return wide
