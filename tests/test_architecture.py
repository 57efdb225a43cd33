"""The rules of the house: what may import what, where precisions stand, and the placeholders that must be filled."""

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
# From the ground up: a room imports only what stands before it in this list. lab and ladder stand above all that serves
# people with pictures: nothing but the command line starts them, by name (BODY in app/commands). Documents are written
# from outside the application.
FLOORS = (
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
# What only measuring, training and foreign files need, and where it may be imported; names of commands' modules are
# no imports.
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
# Parsed options stay at the door: bodies of commands take typed requests, which the type checker sees through.
USERS = {**EXTRAS, "argparse": ("app/commands/", "app/terminal/console.py", "data_tools/")}


class Imports(NamedTuple):
    """The modules that a file imports: anywhere in it, and as it is loaded."""

    anywhere: set[str]
    at_once: set[str]


@cache
def imports(path: Path) -> Imports:
    """Read them from the file's syntax tree, which is not kept: collecting garbage would walk over all trees."""
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


def imported(path: Path) -> set[str]:
    """Every module that the file imports, anywhere in it."""
    return imports(path).anywhere


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


def test_a_room_imports_only_rooms_below_it() -> None:
    for at, floor in enumerate(FLOORS):
        assert modules(floor), floor
        for path in modules(floor):
            above = [name for name in imported(path) if floor_of(name) in FLOORS[at + 1 :]]
            assert not above, f"{path}: {above}"


@pytest.mark.parametrize(("shelf", "users"), [("app.lab", ("app.lab", "app.ladder")), ("app.ladder", ("app.ladder",))])
def test_the_shelves_are_started_by_name(shelf: str, users: tuple[str, ...]) -> None:
    """What classifies must start without lessons and measurements."""
    for path in (ROOT / "main.py", *PROGRAM):
        if not dotted(path).startswith(users):
            assert not any(within(name, shelf) for name in imported(path)), path


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Within rooms, too, and wherever in a file the import stands."""
    known = {dotted(path).removesuffix(".__init__"): path for path in PROGRAM}
    faces = {name for name, path in known.items() if path.name == "__init__.py"}
    graph = {name: (imported(path) & known.keys()) - faces for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def test_every_module_has_its_floor() -> None:
    for path in PROGRAM:
        assert floor_of(dotted(path)) or path.name == "__init__.py", path


@pytest.mark.parametrize("room", WITHOUT_CUPY)
def test_what_runs_without_a_gpu_needs_no_cupy(room: str) -> None:
    paths = [path for path in PROGRAM if within(dotted(path), room)]
    assert paths
    for path in paths:
        assert not any(within(name, "cupy") for name in imported(path)), path


def test_the_house_is_small_enough_to_see() -> None:
    """At most 2 files at the top of app/, 26 in a folder, 300 lines a file."""
    assert len([*(ROOT / "app").glob("*.py")]) <= 2
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


@pytest.mark.parametrize(
    ("reads", "places"),
    [
        (r"perf_counter|monotonic", {"app/base/clock.py", "main.py"}),  # main.py: before it imports anything
        (r"get_elapsed_time|cuda\.Event\((?!.*disable_timing=True)", {"app/cuda/events.py"}),
    ],
)
def test_each_clock_is_read_in_one_module(reads: str, places: set[str]) -> None:
    """The host's, and the device's by events; ages of files are no timing."""
    paths = [ROOT / "main.py", *PROGRAM, *(ROOT / "docs").rglob("*.py")]
    found = {path for path in paths if re.search(reads, path.read_text(encoding="utf-8"))}
    assert {path.relative_to(ROOT).as_posix() for path in found} == places


@pytest.mark.parametrize("module", USERS)
def test_modules_are_imported_where_they_belong(module: str) -> None:
    users = [path for path in PROGRAM if any(within(name, module) for name in imported(path))]
    assert users, f"nothing imports {module}: is this test looking in the right place?"
    for user in users:
        assert user.relative_to(ROOT).as_posix().startswith(USERS[module]), user


@pytest.mark.parametrize("extra", [*EXTRAS, "app.cluster.runner"])
def test_extras_are_imported_only_when_they_are_needed(extra: str) -> None:
    """Inside functions: a command must answer without them. The room of Dask's extra is imported so itself."""
    for path in {*(ROOT / "app").rglob("*.py")} - {*(ROOT / "app" / "cluster").glob("*.py")}:
        assert not any(within(name, extra) for name in imports(path).at_once), path


def test_warnings_are_errors_in_tests() -> None:
    with pytest.raises(DeprecationWarning):
        warnings.warn("going away", DeprecationWarning, stacklevel=1)


NAMES = {*BY_NAME, *BY_DTYPE}
# Where two or more types may stand together, and why that is no table of precisions.
EXCEPTIONS = {
    "app/kernels": "what each kernel is in its types stands in its row, beside its .cu file",
    "app/network/weights.py": "how weights lie in their files",
    "app/lab/bench/peak.py": "the loops of peak.cu",
    "app/lab/bench/oracle.py": "what NumPy rounds to",
    "app/lab/bench/tolerance.py": "one rounding of a number in memory",
    "docs/generate/targets.py": "times that were asked for",
}


def copies(text: str) -> list[int]:
    """Lines of the dicts with two or more precisions or types as keys, and of other literals with so many in them."""
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


def excepted(name: str) -> str | None:
    """The exception that the file falls under."""
    return next((place for place in EXCEPTIONS if name == place or name.startswith(f"{place}/")), None)


def test_what_a_precision_is_stands_in_one_file() -> None:
    used = set()
    for folder in ("app", "docs/generate", "data_tools"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            lines = copies(path.read_text(encoding="utf-8"))
            if lines:
                assert excepted(name), f"{name}, lines {lines}: read app/base/precision.py"
                used.add(excepted(name))
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
def test_a_copy_is_found_and_a_single_mention_is_none(text: str, found: set[int]) -> None:
    assert set(copies(text)) == found


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
