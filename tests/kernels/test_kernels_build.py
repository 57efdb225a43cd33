"""Test that kernels compile for every architecture of their rows, and that files, registry and ladder steps agree."""

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


def _choose_builds(row: Variant, long_form: bool) -> list[tuple[LaunchConfig, str]]:
    """Return (configuration, architecture) pairs to compile; without long_form only for the lowest and the H100's."""
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
        # Problems spread over the grid, different ones for each architecture.
        taken = {
            (at * len(distinct) // len(declared) + i * len(distinct) // count) % len(distinct) for i in range(count)
        }
        builds += [(distinct[index], arch) for index in sorted(taken)]
    return builds


@pytest.fixture(scope="module")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder that caches compiled kernels for this file's tests alone."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENET_CACHE_DIR", str(folder))
        yield folder


@ALL_VARIANTS
def test_compiles_for_every_architecture(row: Variant, build_cache: Path, long_form: bool) -> None:
    """Without NVRTC this fails instead of being skipped: it needs no GPU, and ``make test`` installs the compiler."""

    def compile_build(build: tuple[LaunchConfig, str]) -> tuple[LaunchConfig, bytes]:
        return build[0], compile_kernel(row.path, build[0].defines, build[1])

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC compiles in parallel
        for config, cubin in pool.map(compile_build, _choose_builds(row, long_form)):
            assert cubin.startswith(b"\x7fELF")
            names = {launch.entry or row.entry for launch in config.launches}
            names |= {action.symbol for action in config.actions if isinstance(action, ConstantCopy)}
            for name in names:
                assert f"\0{name}\0".encode() in cubin, f"{name} is not in {row.source}"


@pytest.mark.parametrize("operation", sorted({row.operation for row in VARIANTS}))
def test_step_numbers_have_no_gaps(operation: str) -> None:
    """Every step number of an operation has exactly one row."""
    steps = [row.step for row in variants(operation)]
    assert steps == [*range(steps[0], steps[0] + len(steps))] and steps[0] in (0, 1)


def test_every_file_has_one_row_and_every_row_its_file() -> None:
    files = {path.name for path in KERNEL_DIR.rglob("*.cu")} - {
        "resident_01_wgmma.cu"
    }  # computes a whole network, so it has no row
    assert sorted(row.source for row in ALL_ROWS) == sorted(files)
    assert len({(row.operation, row.name) for row in VARIANTS}) == len(VARIANTS)


@pytest.mark.parametrize("operation", ["conv", "gemm"])
def test_kernels_of_one_and_two_layers_have_different_names(operation: str) -> None:
    """One option accepts both kinds of kernel, so equal names would be ambiguous."""
    single, pairs = ({row.name for row in variants(name)} for name in (operation, f"{operation}_pair"))
    assert pairs and not single & pairs


@FILES
def test_sources_need_no_toolkit_and_state_no_times(path: Path) -> None:
    """Sources include only existing project headers. Measured times belong to docs/, beside the measuring command."""
    text = path.read_text(encoding="utf-8")
    for included in re.findall(r"^\s*#\s*include\s+(.*)$", text, re.MULTILINE):
        assert re.fullmatch(r'"\w+\.cuh?"', included), included
        assert any((folder / included.strip('"')).exists() for folder in (path.parent, INCLUDE_DIR)), included
    assert not TIMING.search(text), TIMING.search(text)


@ALL_VARIANTS
def test_convolution_steps_introduce_constants_and_restrict(row: Variant) -> None:
    """Sizes are run-time arguments up to step 5 and constants from step 6 on; only step 7 has __restrict__."""
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
def test_modules_are_loaded_when_needed(name: str, loads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``load_module`` loads one shared module, or one for each call if launches write constant memory."""
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


# The PTX must define every register that a warpgroup's tensor-core product adds to.

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
    """Return the registers that a product adds to although no instruction before it in the text writes them."""
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
    """Return the PTX of a row's kernel for its first problem of that type, without line numbers.

    texts: file name to source text, to compile instead of the tree's files. constants: compile-time constants to add.
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
    """Products that ignore their sums count, too: in C++, an asm statement must not read undefined registers."""
    ptx = ptx_of(row, dtype)
    assert PRODUCT.search(ptx)
    assert not undefined_accumulators(ptx)


# Ladder steps: each continues another step and changes few lines of its file.

LADDERS = ("conv", "gemm", "pool")  # single layers; pairs of layers are whole programs
MOST_CHANGED = 70  # lines of code
# Steps to other instructions, which leave no code of the step before.
TO_TENSOR_CORES = {("conv", "tensor-core"), ("conv", "warpgroup"), ("gemm", "tensor-core"), ("gemm", "warpgroup")}
# A step to another algorithm, which loads, multiplies and stores other numbers.
OTHER_SUMS = {("conv", "toom-cook")}
CONTINUING = [row for row in VARIANTS if row.operation in LADDERS and row.since is not None and row.taught]
IN_STEPS = pytest.mark.parametrize("row", CONTINUING, ids=lambda row: row.source.removesuffix(".cu"))


@IN_STEPS
def test_each_step_changes_few_lines(row: Variant) -> None:
    assert row.since is not None
    texts = (step.path.read_text(encoding="utf-8") for step in (row_of(row.operation, row.since), row))
    changed = count_changed_lines(*map(code_lines, texts))
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
