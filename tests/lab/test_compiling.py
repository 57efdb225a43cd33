"""Test compilation for measuring commands, also with Ctrl-C, instructions of hottest loops, and shares of peaks."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from tqdm import tqdm

from app.cuda.compiler import architecture_number, compile_kernel, is_cached, read_with_includes
from app.drawing import svg
from app.kernels import registry
from app.kernels.plain_problems import ArgmaxProblem
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearPairProblem, LinearProblem, PairProblem, Problem
from app.kernels.variant import Variant
from app.lab.bench import compiling, plots
from app.lab.bench.compiling import compile_variants
from app.lab.bench.results import achieved_rates, executed_operations, peak_name
from app.lab.bench.table import short_peak_name
from app.planning import tuning
from app.records.parts import Peaks
from app.tools import machine_code, precompile, resources
from app.tools.machine_code import CLASSES, OTHER, hottest_loop_counts, parse_functions
from tests.lab.test_bench import make_document
from tests.support.shell import user_error


def test_only_supported_variants_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    served: list[tuple[Problem, Variant]] = [
        (ArgmaxProblem(10), registry.variants("argmax")[0]),
        (LinearProblem(20, 10), next(row for row in registry.variants("gemm") if row.name == "naive")),
    ]
    no_tuning = tuning.load("no such card")
    half = LinearProblem(20, 10, dtype="float16", input_dtype="float16", output_dtype="float16")
    hopper = [(half, row) for row in registry.variants("gemm") if row.refusal_reason(half, "sm_75") is not None]
    assert hopper
    compile_variants(hopper, "sm_75", no_tuning)
    assert not [*tmp_path.rglob("*.cubin")]
    compile_variants(served, "sm_80", no_tuning)
    for problem, row in served:
        assert is_cached(
            row.path, row.launch_config(problem, no_tuning.parameters(problem, row, "sm_80")).defines, "sm_80"
        )


# Machine code: a loop with one multiplication; a loop with two, which contains a loop that copies; straight code.
TEXT = """
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   FFMA R2, R3, R4, R2 ;
        /*0020*/               @P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0030*/                   LDG.E.CONSTANT R3, desc[UR4][R6.64] ;
.L_x_2:
        /*0040*/                   STS [R5], R3 ;
        /*0050*/              @!P1 BRA `(.L_x_2) ;
        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0070*/                   LDS.128 R8, [R5] ;
        /*0080*/                   HFMA2.MMA R10, -RZ, RZ, 0, 0 ;
        /*0090*/                   FFMA R2, R8, R4.reuse, R2 ;
        /*00a0*/                   HMMA.16816.F32 R4, R4, R8, RZ ;
        /*00b0*/              @!UP0 BRA `(.L_x_1) ;
        /*00c0*/                   EXIT ;
.text.second:
        /*0000*/                   FFMA R2, R8, R4, R2 ;
.L_x_3:
        /*0010*/                   BRA `(.L_x_3) ;
"""


def test_the_hottest_loop_is_counted_without_copies_within_it() -> None:
    (first, code, labels), (second, straight, others) = parse_functions(TEXT)
    assert (first, len(code), second, len(straight)) == ("first", 13, "second", 2)
    assert labels == {".L_x_0": 0x10, ".L_x_1": 0x30, ".L_x_2": 0x40}
    counted = {"multiply": 2, "global_load": 1, "shared_load": 1, "barrier": 1, "branch": 1, OTHER: 1}
    assert hottest_loop_counts(code, labels) == {"instructions": 7, **dict.fromkeys(CLASSES, 0), OTHER: 0} | counted
    assert hottest_loop_counts(straight, others) is None  # the loop at a kernel's end multiplies nothing
    assert hottest_loop_counts(code[:3], labels) and not hottest_loop_counts(code[:3] + 2 * straight[:1], labels)


def test_missing_nvdisasm_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code.shutil, "which", lambda _: None)
    assert "pip install nvidia-cuda-nvdisasm" in user_error(lambda: machine_code.measure_hottest_loops([], "sm_90a"))


CORES = 2
ROWS = [row for row in registry.variants("gemm") if row.refusal_reason(LinearProblem(20, 10), "sm_80") is None]
COMMANDS: dict[str, Callable[[], object]] = {
    "kernels --resources": lambda: resources.measure_resources(ROWS, "sm_80"),
    "kernels --instructions": lambda: machine_code.measure_hottest_loops(ROWS, "sm_80"),
    "bench": lambda: compiling.compile_variants(
        [(LinearProblem(20, 10), row) for row in ROWS], "sm_80", tuning.load("")
    ),
    "precompile": lambda: precompile._compile_all([(row.path, ()) for row in ROWS], "sm_80"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_between_two_kernels_drops_the_others(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes when all kernels are in the threads' queue and the main thread does not wait yet."""
    interrupted, begun = Event(), 0

    def compiled(*_: object) -> Iterator[None]:
        nonlocal begun
        begun += 1
        assert interrupted.wait(60)
        return iter(())

    def interrupt(bar: tqdm) -> Iterator[object]:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            interrupted.set()
        return iter(bar.iterable)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(CORES))
    monkeypatch.setattr(tqdm, "__iter__", interrupt)
    monkeypatch.setattr(machine_code, "find_nvdisasm", lambda: "")
    monkeypatch.setattr(precompile, "is_cached", lambda *_: False)
    monkeypatch.setattr(resources, "_example_resources", compiled)
    monkeypatch.setattr(machine_code, "_example_instructions", compiled)
    for module in (compiling, precompile):
        monkeypatch.setattr(module, "compile_kernel", compiled)
    with pytest.raises(KeyboardInterrupt):
        COMMANDS[command]()
    assert begun <= CORES < len(ROWS)


PEAKS: Peaks = {
    "tflops": {"float32": 50.0, "tfloat32": 300.0, "float16": 600.0, "float16 hfma2": 100.0, "float16 wgmma": 900.0},
    "gbytes_per_s": 1e6,
}
CONV = ConvProblem(32, 12, 12, 64, 5)
HALF = replace(CONV, dtype="float16", input_dtype="float16", output_dtype="float16")


def peak_share(problem: ConvProblem | LinearProblem | PairProblem, instructions: str) -> float:
    """Return the share of the peak that 100 TFLOP/s are, with unlimited memory bandwidth."""
    images = round(1e12 / problem.flops)
    found = achieved_rates(problem, problem.dtype, images, 10.0, PEAKS, instructions)
    assert found["limit"] == "arithmetic" and found["share"] is not None
    assert found["tflops"] == pytest.approx(100, rel=1e-2)
    return found["share"]


@pytest.mark.parametrize(
    ("problem", "instructions", "peak"),
    [
        (CONV, "fma", 50),
        (replace(CONV, dtype="tfloat32"), "mma", 300),
        (HALF, "fma", 50),  # halves in memory, float32 in registers
        (HALF, "hfma2", 100),
        (HALF, "mma", 600),
        (HALF, "wgmma", 900),
        (HALF, "", 900),  # a library's: the fastest that the type has
        (CONV, "", 50),
        (replace(CONV, dtype="float16x2"), "mma", 100),  # three products, in tfloat32
    ],
)
def test_each_instruction_family_has_its_peak(problem: ConvProblem, instructions: str, peak: float) -> None:
    assert peak_share(problem, instructions) == pytest.approx(100 / peak, rel=1e-2)


def test_split_operands_are_multiplied_several_times() -> None:
    """The card executes three products for one, two if one factor is exact in float16, and one if both are."""
    first = ConvProblem(1, 28, 28, 32, 5, activation="relu", pool=2, input_dtype="uint8", dtype="float16x2")
    second = replace(CONV, activation="relu", pool=2, dtype="float16x2")
    pair = ConvPairProblem(first, second)
    assert executed_operations(pair) == 2 * first.flops + 3 * second.flops
    assert executed_operations(replace(pair, exact=True)) == first.flops + 2 * second.flops
    assert peak_share(pair, "wgmma") == pytest.approx(executed_operations(pair) / pair.flops / 9, rel=1e-2)
    products = [LinearProblem(1024, 128, dtype="float16x2"), LinearProblem(128, 10, argmax=True, dtype="float16x2")]
    both, flops = LinearPairProblem(products[0], products[1]), products[0].flops + products[1].flops
    assert executed_operations(both) == 3 * flops and executed_operations(replace(both, exact=True)) == 2 * flops
    assert [executed_operations(replace(products[0], exact=exact)) // products[0].flops for exact in (False, True)] == [
        3,
        2,
    ]
    assert executed_operations(HALF) == HALF.flops


@pytest.mark.parametrize("row", registry.VARIANTS, ids=lambda row: f"{row.operation} {row.name}")
def test_rows_name_the_instructions_of_their_sources(row: Variant) -> None:
    """The kernel's file contains the names of the instructions, or of functions for them."""
    text = row.path.read_text(encoding="utf-8")
    used = {"wgmma": "wgmma.cuh" in read_with_includes(row.path), "mma": "mma_" in text}
    found = "wgmma" if used["wgmma"] and row.only_arch == 90 else "mma" if used["mma"] else row.instructions
    assert row.instructions == found and row.instructions in ("fma", "hfma2", "mma", "wgmma")
    assert (row.instructions == "hfma2") == (row.name == "half2")
    for dtype in row.dtypes:
        if row.operation in ("conv", "gemm", "conv_pair", "gemm_pair") and dtype != "float64":
            assert peak_name(row.instructions, dtype) in PEAKS["tflops"]


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_every_peak_loop_compiles(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.lab.bench.peak import LOOPS, SOURCE

    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    assert set(LOOPS) == set(PEAKS["tflops"])
    for loop in LOOPS.values():
        if loop.serves(architecture_number(arch)):
            assert b"peak" in compile_kernel(SOURCE, {loop.constant: 1}, arch)


def test_charts_and_text_name_every_peak() -> None:
    assert [short_peak_name(name) for name in PEAKS["tflops"]] == ["fp32", "tf32", "fp16", "fp16 hfma2", "fp16 wgmma"]
    found = make_document() | {"peaks": {"tflops": dict(PEAKS["tflops"]), "gbytes_per_s": 3000.0}}
    described = plots.roofline_chart(found, "conv1").partition("<desc")[2].partition("</desc>")[0]
    assert all(
        f"{short_peak_name(name)} {svg.format_number(peak)} TFLOP/s" in described
        for name, peak in PEAKS["tflops"].items()
    )


@pytest.mark.gpu
@pytest.mark.alone
def test_every_instruction_family_of_the_card_is_measured() -> None:
    """Rates are only positive: other programs may use the card."""
    from app.cuda.device import describe_gpu
    from app.lab.bench.peak import LOOPS, measure_peaks

    arch = describe_gpu()["architecture"]
    found = measure_peaks(arch)["tflops"]
    assert set(found) == {name for name, loop in LOOPS.items() if loop.serves(architecture_number(arch))}
    assert all(rate > 0 for rate in found.values()), found
