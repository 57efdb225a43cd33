"""The rules of the house: what may import what, and the placeholders that must be filled."""

import ast
import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# From the ground up: a room, or a module of app/ itself, imports only what stands before it in this list; documents are
# written from outside the application.
FLOORS = (
    "app.errors",
    "app.interrupts",
    "app.processor",
    "app.precision",
    "app.files",
    "app.console",
    "app.options",
    "app.text",
    "app.figures",
    "app.cuda",
    "app.kernels",
    "app.layers",
    "app.network",
    "app.output",
    "app.planning",
    "data_tools",
    "app.runtime",
    "app.report",
    "app.training",
    "app.commands.options",
    "app.bench",
    "app.commands",
    "app.main_job",
    "app.cli",
    "docs",
)
WITHOUT_CUPY = ("app.layers", "app.network", "data_tools", "app.commands.options", "app.files")
SOURCES = ("", "app/**/", "data_tools/**/", "docs/**/", "tests/**/")
PROGRAM = [path for folder in ("app", "data_tools") for path in (ROOT / folder).rglob("*.py")]
# What only measuring and training need, and where it may be imported; names of commands' modules are no imports.
EXTRAS = {
    "torch": ("app/bench",),
    "jax": ("app/bench/peers",),
    "matplotlib": ("app/bench", "app/figures.py", "app/training", "data_tools"),
}
# Parsed options stay at the door: bodies of commands take typed requests, which the type checker sees through.
USERS = {**EXTRAS, "argparse": ("app/commands/", "app/console.py", "data_tools/")}


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


def floor_of(name: str) -> str | None:
    """The longest entry of ``FLOORS`` that the dotted name is or lies in."""
    return max((floor for floor in FLOORS if within(name, floor)), key=len, default=None)


def modules(floor: str) -> list[Path]:
    """The files of a floor, without those of floors inside it."""
    place = ROOT / floor.replace(".", "/")
    paths = [*place.rglob("*.py")] if place.is_dir() else [place.with_suffix(".py")]
    return [path for path in paths if floor_of(dotted(path)) == floor]


def dotted(path: Path) -> str:
    """``app/files/cache.py`` → ``app.files.cache``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("floor", FLOORS)
def test_a_room_imports_only_rooms_below_it(floor: str) -> None:
    paths = modules(floor)
    assert paths
    below = FLOORS[: FLOORS.index(floor) + 1]
    for path in paths:
        for name in imported(path):
            other = floor_of(name)
            assert other is None or other in below, f"{path}: {name}"


def test_every_module_has_its_floor() -> None:
    for path in PROGRAM:
        assert floor_of(dotted(path)) or path.name == "__init__.py", path


@pytest.mark.parametrize("floor", WITHOUT_CUPY)
def test_what_runs_without_a_gpu_needs_no_cupy(floor: str) -> None:
    for path in modules(floor):
        assert not any(within(name, "cupy") for name in imported(path)), path


def test_the_house_is_small_enough_to_see() -> None:
    """At most 14 files at the top of app/, 26 in a folder, 300 lines a file."""
    assert len([*(ROOT / "app").glob("*.py")]) <= 14
    for folder in {path.parent for path in (ROOT / "app").rglob("*.*")}:
        assert len([path for path in folder.iterdir() if path.is_file()]) <= 26, folder
    for path in (
        path for folder in SOURCES for path in ROOT.glob(f"{folder}*") if path.suffix in (".py", ".cu", ".cuh")
    ):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, path


def test_the_gate_may_know_of_memory() -> None:
    """Scratch arrays are the only thing that kernels' launches take from above, and only there."""
    users = {path.name for path in (ROOT / "app" / "kernels").rglob("*.py") if "app.cuda.memory" in imported(path)}
    assert users == {"launch.py"}


@pytest.mark.parametrize("module", USERS)
def test_modules_are_imported_where_they_belong(module: str) -> None:
    users = [path for path in PROGRAM if any(within(name, module) for name in imported(path))]
    assert users, f"nothing imports {module}: is this test looking in the right place?"
    for user in users:
        assert user.relative_to(ROOT).as_posix().startswith(USERS[module]), user


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
