"""Read from CONTRIBUTING.md what to edit to add a thing, and make copies of the tree for tests to edit."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("app", "data_tools", "tests")


def listed_files(title: str) -> set[str]:
    """The files that the section ``title`` links to, by their paths from the root."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {title}\n(.*?)(?:^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return set(re.findall(r"\]\(([^)]+)\)", section))


def copied(place: Path) -> Path:
    """The place, with the application and its tests in it."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in the copy, with a compile cache of its own. Its pytest is no worker of the one that runs this."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**own, "LENET_CACHE_DIR": str(place / "cache"), "PYTHONPATH": str(place)}
    command = [sys.executable, "-B", *arguments]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=600)


def changed_files(copy: Path) -> set[str]:
    """The files in a copy of the tree that are new or differ from the original, without caches."""
    paths = (path for folder in FOLDERS for path in (copy / folder).rglob("*") if path.is_file())
    names = {path.relative_to(copy).as_posix() for path in paths if "__pycache__" not in path.parts}
    return {
        name for name in names if not (ROOT / name).exists() or (ROOT / name).read_bytes() != (copy / name).read_bytes()
    }
