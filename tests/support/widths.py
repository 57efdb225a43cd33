"""Holds printed tables against the terminal's width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.text import UNLIMITED, WIDTH


def check_widths(as_text: Callable[[Mapping[str, Any], int], str], document: Mapping[str, Any]) -> str:
    """No line is over ``WIDTH`` columns, and ``--wide`` leaves out no column and cuts no cell; the wide text."""
    assert all(len(line) <= WIDTH for line in as_text(document, WIDTH).splitlines())
    wide = as_text(document, UNLIMITED)
    assert "--wide adds" not in wide and not any(word.endswith("…") and len(word) > 1 for word in wide.split())
    return wide
