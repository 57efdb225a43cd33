"""Every kernel compiles where its row declares it; the files, the registry and the ladder's order agree."""

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.cuda.compiler import (
    ARCHITECTURES,
    INCLUDE_DIR,
    KERNEL_DIR,
    architecture_number,
    compile_kernel,
    compile_options,
    import_nvrtc,
    read_with_includes,
)
from app.kernels.problems import ConvProblem
from app.kernels.registry import VARIANTS, variants
from app.kernels.train.train import TRAINING_KERNELS, TrainingKernel
from app.kernels.variant import ConstantCopy, LaunchConfig, Variant
from app.ladder.lessons import code_lines, count_changed_lines
from tests.support.kernel_grid import row_of, served

ALL_ROWS: list[Variant | TrainingKernel] = [*VARIANTS, *TRAINING_KERNELS]
ALL_VARIANTS = pytest.mark.parametrize("row", VARIANTS, ids=lambda row: row.source.removesuffix(".cu"))
FILES = pytest.mark.parametrize("path", sorted(KERNEL_DIR.rglob("*.cu*")), ids=lambda path: path.name)
TIMING = re.compile(r"\d\s*(?:ns|us|µs|ms|seconds?|[GT]FLOP/s|[GT]B/s|% (?:faster|slower))\b")


def _builds(row: Variant, long_form: bool) -> list[tuple[LaunchConfig, str]]:
    """(configuration, architecture): other problems for each architecture; in short for the lowest and the H100's."""
    builds = []
    declared = [
        arch
        for arch in ARCHITECTURES
        if architecture_number(arch) >= row.min_arch and row.only_arch in (None, architecture_number(arch))
    ]
    assert declared
    if not long_form:
        declared = [arch for arch in declared if arch in (declared[0], "sm_90a")]
    for at, arch in enumerate(declared):
        configs = [row.launch_config(problem) for problem in served(row, arch)]
        distinct = list({repr(sorted(config.defines.items())): config for config in configs}.values())
        assert distinct, f"no problem in the grid reaches {row.source} on {arch}"
        count = 2 if long_form and arch in (declared[0], "sm_90a") else 1
        # Spread over the grid, and beginning elsewhere for each architecture.
        taken = {
            (at * len(distinct) // len(declared) + i * len(distinct) // count) % len(distinct) for i in range(count)
        }
        builds += [(distinct[index], arch) for index in sorted(taken)]
    return builds


@pytest.fixture(scope="module")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of compiled kernels for this file's tests alone."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENET_CACHE_DIR", str(folder))
        yield folder


@ALL_VARIANTS
def test_compiles_for_every_architecture(row: Variant, build_cache: Path, long_form: bool) -> None:
    """Fails, not skips, without NVRTC: compiling needs no GPU, and ``make test`` installs the compiler."""

    def compiled(build: tuple[LaunchConfig, str]) -> tuple[LaunchConfig, bytes]:
        return build[0], compile_kernel(row.path, build[0].defines, build[1])

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC compiles in parallel
        for config, cubin in pool.map(compiled, _builds(row, long_form)):
            assert cubin.startswith(b"\x7fELF")
            names = {launch.entry or row.entry for launch in config.launches}
            names |= {action.symbol for action in config.actions if isinstance(action, ConstantCopy)}
            for name in names:
                assert f"\0{name}\0".encode() in cubin, f"{name} is not in {row.source}"


@pytest.mark.parametrize("operation", sorted({row.operation for row in VARIANTS}))
def test_the_whole_ladder_is_there(operation: str) -> None:
    """Two rows of no step, and no step without a row."""
    steps = [row.step for row in variants(operation)]
    assert steps == [*range(steps[0], steps[0] + len(steps))] and steps[0] in (0, 1)


def test_every_file_has_one_row_and_every_row_its_file() -> None:
    files = {path.name for path in KERNEL_DIR.rglob("*.cu")} - {
        "resident_01_wgmma.cu"
    }  # of a whole plan, not of a layer
    assert sorted(row.source for row in ALL_ROWS) == sorted(files)
    assert len({(row.operation, row.name) for row in VARIANTS}) == len(VARIANTS)


@pytest.mark.parametrize("operation", ["conv", "gemm"])
def test_one_name_says_whether_a_kernel_takes_one_layer_or_two(operation: str) -> None:
    """One option names both: a kernel of two layers with the name of a single one's could not be asked for."""
    single, pairs = ({row.name for row in variants(name)} for name in (operation, f"{operation}_pair"))
    assert pairs and not single & pairs


@FILES
def test_files_need_no_toolkit_and_make_no_claims(path: Path) -> None:
    """Only headers of ours, which are there; figures belong to docs/, where the command that measured them is."""
    text = path.read_text(encoding="utf-8")
    for included in re.findall(r"^\s*#\s*include\s+(.*)$", text, re.MULTILINE):
        assert re.fullmatch(r'"\w+\.cuh?"', included), included
        assert any((folder / included.strip('"')).exists() for folder in (path.parent, INCLUDE_DIR)), included
    assert not TIMING.search(text), TIMING.search(text)


@ALL_VARIANTS
def test_neighbouring_steps_differ_by_what_they_show(row: Variant) -> None:
    """Sizes are run-time arguments up to convolution 5 and constants from 6 on; __restrict__ comes with 7."""
    if row.operation != "conv" or not 0 < row.step < 8:
        return
    code = re.sub(r"//.*", "", row.path.read_text(encoding="utf-8"))
    assert ("__restrict__" in code) == (row.step == 7)
    for problem in served(row, "sm_90a"):
        config = row.launch_config(problem)
        constants = set("CHWMKS") & set(config.defines)
        assert constants == (set() if row.step <= 5 else set("CHWMKS"))
        for launch in config.launches:
            assert row.step > 5 or launch.scalars[:6] == problem.sizes  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "loads"), [("direct", 1), ("constant", 3)])
def test_code_is_loaded_when_it_is_launched(name: str, loads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; where launches write constant memory, for each of them."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.kernels import launch

    loaded: list[object] = []

    def load(_: bytes) -> object:
        loaded.append(object())
        return loaded[-1]

    monkeypatch.setattr(launch, "compile_kernel", lambda *_, **__: b"")
    monkeypatch.setattr(launch, "load_cubin", load)
    kernel = launch.Kernel(row_of("conv", name), ConvProblem(1, 8, 8, 4, 3), "sm_75")
    assert not loaded
    assert {id(kernel.load_module()) for _ in range(3)} == set(map(id, loaded)) and len(loaded) == loads


# What enters the tensor cores of a warpgroup is defined: read from the PTX.

ROWS = [
    pytest.param(row, dtype, id=f"{row.source.removesuffix('.cu')}-{dtype}")
    for row in VARIANTS
    if "wgmma" in row.technique
    for dtype in row.dtypes
]
PRODUCT = re.compile(r"wgmma\.mma_async\S*\s+\{([^}]*)\}")
WRITTEN = re.compile(r"(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+)")
REGISTER = re.compile(r"%[fr]\d+")  # sums of float32, of int32


def undefined_accumulators(ptx: str) -> set[str]:
    """Registers that a product adds to, and that no instruction before it in the text has written."""
    defined: set[str] = set()
    undefined: set[str] = set()
    for line in map(str.strip, ptx.splitlines()):
        if product := PRODUCT.match(line):
            sums = set(REGISTER.findall(product[1]))
            assert sums
            undefined |= sums - defined
            defined |= sums
        elif written := WRITTEN.match(line):
            defined |= set(REGISTER.findall(written[1]))
    return undefined


def ptx_of(row: Variant, dtype: str, texts: Mapping[str, str] | None = None, **constants: int) -> str:
    """The kernel for the first problem of that type, as the compiler hands it to the assembler, without line numbers.

    texts: of the row's file and its headers; other ones than in the tree.
    """
    binding, texts = import_nvrtc(), read_with_includes(row.path) if texts is None else texts
    problem = next(problem for problem in served(row, "sm_90a") if problem.dtype == dtype)
    headers = {name: text.encode() for name, text in texts.items() if name != row.source}
    names = [name.encode() for name in headers]
    program = binding.createProgram(texts[row.source], row.source, [*headers.values()], names)
    try:
        _, language, mode, *defines = compile_options(row.launch_config(problem).defines | constants, "sm_90a")
        assert mode == "--generate-line-info", "code for a debugger is slow"
        binding.compileProgram(program, ("--gpu-architecture=compute_90a", language, *defines))
        ptx = binding.getPTX(program)
        return ptx.decode() if isinstance(ptx, bytes) else str(ptx)
    finally:
        binding.destroyProgram(program)


@pytest.mark.parametrize(("row", "dtype"), ROWS)
def test_no_undefined_register_enters_a_product(row: Variant, dtype: str) -> None:
    """Also where the product ignores it: an asm statement that reads what was never written is undefined in C++."""
    ptx = ptx_of(row, dtype)
    assert PRODUCT.search(ptx)
    assert not undefined_accumulators(ptx)


# The ladder's order: each step names the one that it continues, and changes little of its file.

LADDERS = ("conv", "gemm", "pool")  # single layers; pairs of layers are whole programs
MOST_CHANGED = 70  # lines of code
# The jumps: other instructions, so that nothing of the step below stays as it was.
TO_TENSOR_CORES = {("conv", "tensor-core"), ("conv", "warpgroup"), ("gemm", "tensor-core"), ("gemm", "warpgroup")}
# Another algorithm: other numbers are loaded, multiplied and stored.
OTHER_SUMS = {("conv", "toom-cook")}
CONTINUING = [row for row in VARIANTS if row.operation in LADDERS and row.since is not None and row.taught]
IN_STEPS = pytest.mark.parametrize("row", CONTINUING, ids=lambda row: row.source.removesuffix(".cu"))


def code(path: Path) -> list[str]:
    """The lines of a file without comments and empty lines."""
    return code_lines(path.read_text(encoding="utf-8"))


@IN_STEPS
def test_a_step_changes_little(row: Variant) -> None:
    assert row.since is not None
    changed = count_changed_lines(code(row_of(row.operation, row.since).path), code(row.path))
    if (row.operation, row.name) in TO_TENSOR_CORES | OTHER_SUMS:
        assert changed > MOST_CHANGED, "a step like any other: no longer one of the jumps"
    else:
        assert 0 < changed <= MOST_CHANGED, f"{row.source}: {changed} lines differ from {row.since}"


def test_changed_lines_are_counted() -> None:
    assert count_changed_lines(["a", "b", "c"], ["a", "b", "c"]) == 0
    assert count_changed_lines(["a", "b", "c"], ["a", "x", "y", "c", "d"]) == 3
    assert count_changed_lines(["a", "b", "c"], ["c"]) == 2


@ALL_VARIANTS
def test_a_step_continues_a_step_of_its_operation(row: Variant) -> None:
    names = [other.name for other in variants(row.operation)]
    assert row.since is None or names.index(row.since) < names.index(row.name)
