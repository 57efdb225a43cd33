"""The rules of the house: what may import what, and the placeholders that must be filled."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "app/layers": ("data_tools", "app.session", "app.graph", "app.plan", "app.cli", "app.run", "cupy"),
    "app/kernels": ("data_tools", "app.layers", "app.session", "app.graph", "app.plan", "app.cli", "app.run"),
    "data_tools": ("app.session", "app.plan", "app.cli", "app.run", "app.report", "cupy"),
}


def imported(path: Path) -> set[str]:
    """Every module that the file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_lower_floors_know_nothing_of_upper_ones(folder: str) -> None:
    for path in (ROOT / folder).glob("*.py"):
        for name in imported(path):
            assert not any(name == f or name.startswith(f"{f}.") for f in FORBIDDEN[folder]), f"{path}: {name}"


@pytest.mark.parametrize("document", ["README.md", "docs/benchmarks.md"])
def test_measured_figures_are_there(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- (\w+):begin -->\n(.*?)<!-- \1:end -->", text, re.DOTALL)
    assert blocks
    for name, content in blocks:
        assert content.strip(), f"{document}: {name} is empty"
