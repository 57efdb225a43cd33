"""The rules of the house: what may import what, and the placeholders that must be filled."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ABOVE_KERNELS = (
    "app.layers",
    "app.session",
    "app.graph",
    "app.plan",
    "app.cli",
    "app.run",
    "app.tuning",
    "app.choices",
)
FORBIDDEN = {
    "app/layers": ("data_tools", "app.bench", "app.session", "app.graph", "app.plan", "app.cli", "app.run", "cupy"),
    "app/kernels": ("data_tools", "app.bench", *ABOVE_KERNELS),
    "app/bench": ("app.cli", "app.run"),
    "data_tools": ("app.bench", "app.session", "app.plan", "app.cli", "app.run", "app.report", "cupy"),
}
# What only measuring and training need, and where it may be imported; names of commands' modules are no imports.
EXTRAS = {
    "torch": ("app/bench",),
    "jax": ("app/bench/peers",),
    "matplotlib": ("app/bench", "app/pictures.py", "app/training", "data_tools"),
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


def within(name: str, package: str) -> bool:
    """Whether a dotted name is the package or below it."""
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_lower_floors_know_nothing_of_upper_ones(folder: str) -> None:
    paths = list((ROOT / folder).glob("*.py"))
    assert paths
    for path in paths:
        for name in imported(path):
            assert not any(within(name, upper) for upper in FORBIDDEN[folder]), f"{path}: {name}"


def test_the_gate_may_know_of_memory() -> None:
    """Scratch arrays are the only thing that kernels' launches take from above, and only there."""
    users = {path.name for path in (ROOT / "app" / "kernels").glob("*.py") if "app.memory" in imported(path)}
    assert users == {"launch.py"}


def test_the_application_does_not_depend_on_its_benchmarks() -> None:
    for path in (ROOT / "app").rglob("*.py"):
        relative = path.relative_to(ROOT).as_posix()
        if not relative.startswith("app/bench/"):
            assert not any(within(name, "app.bench") for name in imported(path)), relative


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_are_imported_where_they_belong(extra: str) -> None:
    users = [
        path.relative_to(ROOT).as_posix()
        for folder in ("app", "data_tools")
        for path in (ROOT / folder).rglob("*.py")
        if any(within(name, extra) for name in imported(path))
    ]
    assert users, f"nothing imports {extra}: is this test looking in the right place?"
    for user in users:
        assert user.startswith(EXTRAS[extra]), user


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_are_imported_only_when_they_are_needed(extra: str) -> None:
    """Inside functions: a command must answer without them."""
    for path in (ROOT / "app").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not any(within(name, extra) for name in {*names, module}), path


def test_warnings_are_errors_in_tests() -> None:
    with pytest.raises(DeprecationWarning):
        warnings.warn("going away", DeprecationWarning, stacklevel=1)


@pytest.mark.parametrize("document", ["README.md", "docs/benchmarks.md"])
def test_measured_figures_are_there(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- (\w+):begin -->\n(.*?)<!-- \1:end -->", text, re.DOTALL)
    assert blocks
    for name, content in blocks:
        assert content.strip(), f"{document}: {name} is empty"
