"""Test the installed package: it runs the examples of docs/api.md and the command, and installs no other names."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

from app.engine.classifier import Classifier
from app.network.definitions import LENET5
from data_tools.idx import write_idx
from tests.support.networks_for_tests import random_images
from tests.support.shell import ROOT

SOURCES = (
    *("app", "data_tools", "weights", "docs", "tests", "main.py", "setup.py", "pyproject.toml", "MANIFEST.in"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile"),
)
OLDEST = 77  # pyproject.toml's version of setuptools
# Text that holds only in the source tree: its imports, its commands and the extras of the package.
OF_THE_TREE = r"^\s*(from|import) (app|data_tools)\b|python main\.py|make run|git checkout|install -e|5-inference\["
PROGRAM = """
import re
import sys
from pathlib import Path

import lenet5_inference

assert not {"numpy", "cupy", "h5py"} & {*sys.modules}

import numpy as np
from lenet5_inference import Classifier, __version__
from lenet5_inference.app import VERSION
from lenet5_inference.app.cli import main
from lenet5_inference.app.commands.parsers import COMMANDS, load_parser
from lenet5_inference.app.ladder.stored import introduction_pages, load_stored_card

with Classifier(device="cpu") as classifier:
    labels = classifier(np.load("images.npy"))
    np.savez("results.npz", labels=labels, logits=classifier.logits, probabilities=classifier.probabilities)
    Classifier(sys.argv[1], device="cpu").close()  # other weights are read by a child process
assert __version__ == VERSION
assert load_stored_card("lenet5").benches and introduction_pages()  # what ladder shows without a GPU
for example in re.findall(r"```python\\n(.*?)```", Path(sys.argv[2]).read_text(encoding="utf-8"), re.DOTALL):
    exec(example)
sys.stdout.flush()  # the command writes past Python's buffer
assert labels.shape == (100,) and len(names) == 100 and halves[1].shape == (50,)
for name in (*COMMANDS, "run"):
    usage, _, text = load_parser(name).format_help().partition("\\n\\n")  # argparse breaks no option of the usage
    wide = [line for line in text.splitlines() if len(line) > 80]
    assert not wide, wide
assert main(["--device", "cpu", "--data", "images", "--labels", "none"]) == 0
assert not {"app", "data_tools"} & {name.partition(".")[0] for name in sys.modules}
"""

TYPED = """
from typing import assert_type

import numpy as np
from lenet5_inference import Classifier, __version__
from numpy.typing import NDArray

assert_type(Classifier("lenet5")(None), NDArray[np.uint8])
assert_type(__version__, str)
Classifier("lenet5").probabilities.no_array_has_this  # type: ignore[union-attr]
"""


def _setuptools() -> int:
    try:
        return int(version("setuptools").partition(".")[0])
    except PackageNotFoundError:
        return 0


def _run(folder: Path, *command: object, path: Path | None = None) -> str:
    environment = dict(os.environ) if path is None else {**os.environ, "PYTHONPATH": str(path), "COLUMNS": "80"}
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(_setuptools() < OLDEST, reason=f"setuptools {OLDEST} is not installed, which builds the package")
def test_the_installed_package(long_form: bool, tmp_path: Path) -> None:
    """This is one test because building takes the most time. The long form also checks the package's types."""
    source, site, elsewhere = (tmp_path / name for name in ("source", "site", "elsewhere"))
    source.mkdir()
    elsewhere.mkdir()
    for name in SOURCES:  # links, because a build writes beside its sources
        (source / name).symlink_to(ROOT / name)
    build = "import setuptools.build_meta as build; print(build.build_wheel('dist'))"
    wheel = source / "dist" / _run(source, "-c", build).splitlines()[-1]
    options = ("--no-deps", "--no-compile", "--no-index", "--disable-pip-version-check")
    _run(source, "-m", "pip", "install", "--quiet", *options, "--target", site, wheel)

    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"lenet5_inference", "bin"}
    package = site / "lenet5_inference"
    for name in ("app", "data_tools", "weights"):
        files = [path for path in (ROOT / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert files and all((package / path.relative_to(ROOT)).is_file() for path in files)
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(OF_THE_TREE, text, re.MULTILINE), path

    images = random_images(LENET5, 3)
    np.save(elsewhere / "images.npy", images)
    write_idx(elsewhere / "images", images[:, 0])
    weights = tmp_path / "own.h5"
    weights.write_bytes((ROOT / "weights" / "lenet5_fashion.h5").read_bytes())
    said = _run(elsewhere, "-c", PROGRAM, weights, ROOT / "docs" / "api.md", path=site)
    example, report = said.split("\n", 1)
    assert example == "the images are int64: give uint8 pixels, or floats in [0, 1]"
    assert report.startswith("lenet5 in fp32 on 3 images") and "agreement  PASSED" in report and "start-up" in report
    with Classifier(device="cpu") as classifier, np.load(elsewhere / "results.npz") as results:
        np.testing.assert_array_equal(results["labels"], classifier(images))
        np.testing.assert_array_equal(results["logits"], classifier.logits)
        np.testing.assert_array_equal(results["probabilities"], classifier.probabilities)

    told = _run(elsewhere, site / "bin" / "lenet5-inference", "--help", path=site)
    assert told.startswith("usage: lenet5-inference [options]") and "main.py" not in told

    # The files that a source archive (sdist) would contain; packing them would take a second more.
    packed = {*(source / "lenet5_inference.egg-info" / "SOURCES.txt").read_text("utf-8").split()}
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*") if path.is_file()]
    assert {str(path) for path in files if "__pycache__" not in path.parts} <= packed
    assert {*SOURCES} <= {name.partition("/")[0] for name in packed}

    assert (package / "py.typed").exists()
    if long_form:
        pytest.importorskip("mypy", reason="mypy is not installed, which reads the package's types")
        (elsewhere / "typed.py").write_text(TYPED, encoding="utf-8")
        checked = ("-m", "mypy", "--warn-unused-ignores", "--cache-dir", os.devnull, "typed.py")
        assert _run(elsewhere, *checked, path=site).startswith("Success")


def test_the_cpu_needs_no_cupy(tmp_path: Path) -> None:
    """The commands run on the CPU without CuPy, as docs/api.md says."""
    write_idx(tmp_path / "images", random_images(LENET5, 3)[:, 0])
    program = (
        "import sys; sys.modules['cupy'] = sys.modules['cupy_backends'] = None\n"
        "from app.cli import main\n"
        "for words in sys.argv[1:]: print(words, 'ends with', main(words.split()))"
    )
    commands = ("graph", "doctor", "--device cpu --data images --labels none")
    said = _run(tmp_path, "-c", program, *commands, path=ROOT)
    assert all(f"{words} ends with 0\n" in said for words in commands), said
