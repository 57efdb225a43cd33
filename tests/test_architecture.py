"""Test the architecture: which packages may import which, sizes of files, and where precisions are described."""

import ast
import re
import warnings
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from app.base.precision import BY_DTYPE, BY_NAME, OF_PEERS, OFFERED, ROWS, SHORT, SINGLE
from app.kernels import registry
from tests.support.syntax import statements

ROOT = Path(__file__).parent.parent
# Packages from the lowest to the highest: each imports only packages that stand before it in this list. Only commands
# start lab and ladder, by name (BODY in app/commands).
PACKAGES = (
    "app.base",
    "app.files",
    "app.terminal",
    "app.records",
    "app.cuda",
    "app.cluster",
    "app.drawing",
    "app.kernels",
    "app.layers",
    "app.network",
    "app.interchange",
    "app.planning",
    "data_tools",
    "app.engine",
    "app.main_job",
    "app.training",
    "app.commands",
    "app.classify",
    "app.images",
    "app.tools",
    "app.lab",
    "app.ladder",
    "app.cli",
    "docs",
)
WITHOUT_CUPY = (
    "app.layers",
    "app.network",
    "app.interchange",
    "data_tools",
    "app.classify.shards",
    "app.commands",
    "app.files",
    "app.images.pictures",
    "app.drawing",
    "app.records",
)
SOURCES = ("", "app/**/", "data_tools/**/", "docs/**/", "tests/**/")
PROGRAM = [path for folder in ("app", "data_tools") for path in (ROOT / folder).rglob("*.py")]
# Optional packages → the folders or files that may import them.
EXTRAS = {
    "torch": ("app/lab", "app/interchange"),
    "safetensors": ("app/interchange",),
    "onnx": ("app/interchange", "app/engine/onnx_runtime.py"),
    "onnxruntime": ("app/interchange", "app/engine/onnx_runtime.py"),
    "jax": ("app/lab/peers",),
    "pynvml": ("app/cuda/nvml.py",),
    "PIL": ("app/images/pictures",),
    "pyarrow": ("app/images/predict",),
    "dask": ("app/cluster",),
    "distributed": ("app/cluster",),
    "jinja2": ("app/ladder",),
    "pygments": ("app/ladder",),
    "markdown_it": ("app/ladder",),
}
# Only parsers use argparse: the commands take typed requests, which the type checker checks.
USERS = {**EXTRAS, "argparse": ("app/commands/", "app/terminal/console.py", "data_tools/")}


class Imports(NamedTuple):
    """The modules that a file imports: anywhere in it, and while it is loaded."""

    anywhere: set[str]
    at_once: set[str]


@cache
def read_imports(path: Path) -> Imports:
    """Return the imports of a file, read from its syntax tree."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = Imports(set(), set())
    for node in statements(tree):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: a relative import, which these rules would not see"
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        else:
            continue
        found.anywhere.update(names)
        if node in tree.body:
            found.at_once.update(names)
    return found


def imported_modules(path: Path) -> set[str]:
    """Return every module that the file imports, anywhere in it."""
    return read_imports(path).anywhere


def is_within(name: str, package: str) -> bool:
    """Return whether a dotted name is the package or below it."""
    return name == package or name.startswith(f"{package}.")


def package_of(name: str) -> str | None:
    """Return the longest entry of PACKAGES that the dotted name is or lies in, or None."""
    return max((package for package in PACKAGES if is_within(name, package)), key=len, default=None)


def package_files(package: str) -> list[Path]:
    """Return the files of an entry of PACKAGES, without those of entries inside it."""
    place = ROOT / package.replace(".", "/")
    paths = [*place.rglob("*.py")] if place.is_dir() else [place.with_suffix(".py")]
    return [path for path in paths if package_of(module_name(path)) == package]


def module_name(path: Path) -> str:
    """Return the dotted name of a file: ``app/files/cache.py`` → ``app.files.cache``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_a_package_imports_only_lower_packages() -> None:
    for at, package in enumerate(PACKAGES):
        assert package_files(package), package
        for path in package_files(package):
            above = [name for name in imported_modules(path) if package_of(name) in PACKAGES[at + 1 :]]
            assert not above, f"{path}: {above}"


@pytest.mark.parametrize(("upper", "users"), [("app.lab", ("app.lab", "app.ladder")), ("app.ladder", ("app.ladder",))])
def test_no_room_imports_lab_or_ladder_but_ladder_lab(upper: str, users: tuple[str, ...]) -> None:
    """Classifying must not import lessons and measurements: the command line loads these two by name."""
    for path in (ROOT / "main.py", *PROGRAM):
        if not module_name(path).startswith(users):
            assert not any(is_within(name, upper) for name in imported_modules(path)), path


def test_no_modules_import_each_other_in_a_circle() -> None:
    """The rule holds within packages, too, and wherever in a file an import stands."""
    known = {module_name(path).removesuffix(".__init__"): path for path in PROGRAM}
    faces = {name for name, path in known.items() if path.name == "__init__.py"}
    graph = {name: (imported_modules(path) & known.keys()) - faces for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def test_every_module_is_in_a_package() -> None:
    for path in PROGRAM:
        assert package_of(module_name(path)) or path.name == "__init__.py", path


@pytest.mark.parametrize("room", WITHOUT_CUPY)
def test_what_runs_without_a_gpu_needs_no_cupy(room: str) -> None:
    paths = [path for path in PROGRAM if is_within(module_name(path), room)]
    assert paths
    for path in paths:
        assert not any(is_within(name, "cupy") for name in imported_modules(path)), path


def test_files_and_folders_are_small() -> None:
    """The limits are 2 files at the top of app/, 26 files in a folder, and 300 lines in a file."""
    assert len([*(ROOT / "app").glob("*.py")]) <= 2
    for folder in {path.parent for path in (ROOT / "app").rglob("*.*")}:
        assert len([path for path in folder.iterdir() if path.is_file()]) <= 26, folder
    for path in (
        path for folder in SOURCES for path in ROOT.glob(f"{folder}*") if path.suffix in (".py", ".cu", ".cuh")
    ):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, path


def test_kernels_allocate_memory_in_one_module() -> None:
    """launch.py allocates the workspaces of launches."""
    users = {
        path.name for path in (ROOT / "app" / "kernels").rglob("*.py") if "app.cuda.memory" in imported_modules(path)
    }
    assert users == {"launch.py"}


@pytest.mark.parametrize(
    ("reads", "places"),
    [
        (r"perf_counter|monotonic", {"app/base/clock.py", "main.py"}),  # main.py: before it imports anything
        (r"get_elapsed_time|cuda\.Event\((?!.*disable_timing=True)", {"app/cuda/events.py"}),
    ],
)
def test_each_clock_is_read_in_one_module(reads: str, places: set[str]) -> None:
    """One module reads the host's clock, another the device's time by events."""
    paths = [ROOT / "main.py", *PROGRAM, *(ROOT / "docs").rglob("*.py")]
    found = {path for path in paths if re.search(reads, path.read_text(encoding="utf-8"))}
    assert {path.relative_to(ROOT).as_posix() for path in found} == places


@pytest.mark.parametrize("module", USERS)
def test_modules_are_imported_where_they_belong(module: str) -> None:
    users = [path for path in PROGRAM if any(is_within(name, module) for name in imported_modules(path))]
    assert users, f"nothing imports {module}: is this test looking in the right place?"
    for user in users:
        assert user.relative_to(ROOT).as_posix().startswith(USERS[module]), user


@pytest.mark.parametrize("extra", [*EXTRAS, "app.cluster.runner"])
def test_extras_are_imported_only_when_they_are_needed(extra: str) -> None:
    """Commands must start without extras, so functions import them, and app.cluster, which needs Dask."""
    for path in {*(ROOT / "app").rglob("*.py")} - {*(ROOT / "app" / "cluster").glob("*.py")}:
        assert not any(is_within(name, extra) for name in read_imports(path).at_once), path


def test_warnings_are_errors_in_tests() -> None:
    with pytest.raises(DeprecationWarning):
        warnings.warn("going away", DeprecationWarning, stacklevel=1)


NAMES = {*BY_NAME, *BY_DTYPE}
# Files in which two or more types may stand together → why that describes no precision.
EXCEPTIONS = {
    "app/kernels": "what each kernel is in its types stands in its row, beside its .cu file",
    "app/network/weights.py": "how weights lie in their files",
    "app/lab/bench/peak.py": "the loops of peak.cu",
    "app/lab/bench/oracle.py": "what NumPy rounds to",
    "app/lab/bench/tolerance.py": "one rounding of a number in memory",
    "docs/generate/targets.py": "times that were asked for",
}


def find_precision_tables(text: str) -> list[int]:
    """Return the lines of dicts with two or more precisions or types as keys, and of lists with as many in them."""
    found: list[int] = []
    if sum(f'"{name}"' in text for name in NAMES) < 2:  # nearly every file: nothing to parse
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            # Also a table in rows: (("fp32", ...), ("fp16", ...)).
            parts = [e.elts[0] if isinstance(e, ast.Tuple | ast.List) and e.elts else e for e in node.elts]
        else:
            continue
        if len({part.value for part in parts if isinstance(part, ast.Constant) and part.value in NAMES}) > 1:
            found.append(node.lineno)
    return found


def find_exception(name: str) -> str | None:
    """Return the entry of EXCEPTIONS that applies to the file, or None."""
    return next((place for place in EXCEPTIONS if name == place or name.startswith(f"{place}/")), None)


def test_precisions_are_described_in_one_file() -> None:
    used = set()
    for folder in ("app", "docs/generate", "data_tools"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            lines = find_precision_tables(path.read_text(encoding="utf-8"))
            if lines:
                assert find_exception(name), f"{name}, lines {lines}: read app/base/precision.py"
                used.add(find_exception(name))
    assert used == set(EXCEPTIONS), "an exception that nothing needs"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('COLOURS = {"float32": "blue", "float16": "green"}', {1}),
        ('FALLBACKS = {**OTHERS, "fp32x": "fp32", "tf32": "fp32"}', {1}),
        ('if precision in ("fp32", "fp64"): pass', {1}),
        ('for name, dtype in (("fp32", "float32"), ("fp16", "float16")): pass', {1}),
        ('ROWS = [["tfloat32", 1], ["float16x2", 2]]', {1}),
        *((text, set()) for text in ('{"fp16": 1}', '("auto", "fp32")', '{"a": "fp32", "b": "fp16"}')),
    ],
)
def test_precision_tables_are_found(text: str, found: set[int]) -> None:
    assert set(find_precision_tables(text)) == found


def test_rows_agree_with_each_other_and_with_the_kernels() -> None:
    assert len(BY_NAME) == len(BY_DTYPE) == len(ROWS)
    assert len({row.colour for row in ROWS}) == len(ROWS)
    pairs = {dtype for row in registry.VARIANTS if row.operation == "conv_pair" for dtype in row.dtypes}
    served = ({dtype for row in registry.variants(name) for dtype in row.dtypes} for name in ("conv", "gemm"))
    alone = set.intersection(*served)  # for layers of either kind
    for row in ROWS:
        assert SHORT[row.dtype] == row.name and row.stored in BY_DTYPE
        assert row.paired == (row.dtype in pairs)
        assert (row.fallback or row.dtype in alone) and (not row.fallback or row.fallback in alone)
        assert not row.offered or BY_NAME[row.peers].jax
        assert bool(row.jax) == (row.name in OF_PEERS)
    assert all(row.cudnn for row in SINGLE), "bench puts cuDNN beside every kernel of one convolution"
    assert [row.name for row in OFFERED] == ["fp32", "fp32x", "tf32", "fp16", "int8"]
