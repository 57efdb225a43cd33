"""Build the package that pip installs: ``lenet5_inference``, with the tree's app/, data_tools/ and weights/ in it.

In the tree, programs import ``app`` and ``data_tools``. Installed, such names would clash with other packages'. There
they are lenet5_inference.app and lenet5_inference.data_tools, in every import statement, and messages name the
installed commands. All other settings are in pyproject.toml.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

PACKAGE = "lenet5_inference"
ROOT = Path(__file__).parent
FOLDERS = ("app", "data_tools", "weights")
# Single files; and what ladder shows without a GPU, and writes into its pages.
OTHERS = ("main.py", "docs/learn.md")
FIGURES = ("h100_bench_*", "h100_counters_*", "peers_*", "h100_lenet5_fp*", "h100_timeline_*", "kernels_*")
MADE = ("__init__.py", "__main__.py", "py.typed")
INIT = '''"""LeNet-5 and other small networks on NVIDIA GPUs and on the CPU: ``Classifier``."""

from typing import TYPE_CHECKING, Any

from lenet5_inference.app import VERSION as __version__

if TYPE_CHECKING:
    from lenet5_inference.app.engine.classifier import Classifier

__all__ = ["Classifier", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the classifier when it is needed: commands that need no NumPy start without it."""
    if name != "Classifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lenet5_inference.app.engine.classifier import Classifier

    return Classifier
'''
IMPORTS = re.compile(r"^(\s*(?:from|import) )(?=(?:app|data_tools)[. ])", re.MULTILINE)
WORDS = {  # what the tree's programs say → what the installed ones do
    "python main.py": "lenet5-inference",
    "main.py": "lenet5-inference",
    "python -m data_tools": f"python -m {PACKAGE}.data_tools",
    "run make run, then . .venv/bin/activate": "pip check names what is missing; pip install it",
    "start it with PYTHONPATH naming this folder": "install lenet5-inference there",
    "python -m docs.generate, make docs and ladder --pages": "ladder --pages",
    "git checkout -- weights": "pip install --force-reinstall WHEEL, the file that it was installed from",
}
# The command's name is longer: text that is aligned behind an example stays in its column.
ALIGNED = re.compile(r"^(  python main\.py .*?\S)  (?= )", re.MULTILINE)
# Longer ones first; a path is no word.
SAID = re.compile('(?<!/ ")(' + "|".join(map(re.escape, sorted(WORDS, key=len, reverse=True))) + ")")


def adapt_to_installed_package(text: str) -> str:
    """Return a module's source for the wheel: imports from the package, and the installed commands in messages."""
    said = SAID.sub(lambda found: WORDS[found[1]], ALIGNED.sub(r"\1", text))
    return IMPORTS.sub(rf"\1{PACKAGE}.", said)


def sources() -> list[str]:
    """Return the paths of all files of the package, in the tree."""
    paths = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    paths += [path.relative_to(ROOT) for name in FIGURES for path in ROOT.glob(f"docs/benchmarks/{name}.json")]
    return sorted([*(path.as_posix() for path in paths if "__pycache__" not in path.parts), *OTHERS])


class BuildPackage(build_py):
    """Writes the package, with the tree's files in it. An editable install is the tree itself and has no package."""

    def run(self) -> None:
        if self.editable_mode:
            return
        package = Path(self.build_lib, PACKAGE)
        shutil.rmtree(package, ignore_errors=True)  # an earlier build may have left files that are gone
        for name in sources():
            target = package / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix == ".py":
                target.write_text(adapt_to_installed_package((ROOT / name).read_text("utf-8")), "utf-8")
            else:
                shutil.copyfile(ROOT / name, target)
        (package / "__init__.py").write_text(INIT, "utf-8")
        (package / "py.typed").touch()
        shutil.copyfile(package / "main.py", package / "__main__.py")

    def get_source_files(self) -> list[str]:
        return sources()

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [str(Path(self.build_lib, PACKAGE, name)) for name in (*sources(), *MADE)]


class EditableTree(editable_wheel):
    """Installs the dependencies alone: the tree's programs are ``python main.py`` and ``python -m data_tools``."""

    def run(self) -> None:
        self.distribution.packages, self.distribution.entry_points = [], {}
        # To find nothing, setuptools writes a module that every start of Python imports; for a tree of one root folder
        # only that folder's path. There is no such folder.
        self.package_dir = {"": "build/nothing"}
        super().run()


setup(packages=[PACKAGE], cmdclass={"build_py": BuildPackage, "editable_wheel": EditableTree})
