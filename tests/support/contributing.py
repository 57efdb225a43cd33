"""What CONTRIBUTING.md says must be edited to add a thing."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def listed_files(title: str) -> set[str]:
    """The files that the section ``title`` links to, by their paths from the root."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {title}\n(.*?)(?:^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return set(re.findall(r"\]\(([^)]+)\)", section))


def changed_files(copy: Path, *folders: str) -> set[str]:
    """The files of these folders in a copy of the tree that are new or differ from the original, without caches."""
    paths = (path for folder in folders for path in (copy / folder).rglob("*") if path.is_file())
    names = {path.relative_to(copy).as_posix() for path in paths if "__pycache__" not in path.parts}
    return {
        name for name in names if not (ROOT / name).exists() or (ROOT / name).read_bytes() != (copy / name).read_bytes()
    }
