"""Test the peaks for kernels: one for each family of instructions, counting all executed operations."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.cuda.compiler import architecture_number, compile_kernel, read_with_includes
from app.drawing import svg
from app.kernels import registry
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearPairProblem, LinearProblem
from app.kernels.variant import Variant
from app.lab.bench import plots
from app.lab.bench.results import achieved_rates, executed_operations, peak_name
from app.lab.bench.table import short_peak_name
from app.records.parts import Peaks
from tests.lab.test_bench import document

PEAKS: Peaks = {
    "tflops": {"float32": 50.0, "tfloat32": 300.0, "float16": 600.0, "float16 hfma2": 100.0, "float16 wgmma": 900.0},
    "gbytes_per_s": 1e6,
}
CONV = ConvProblem(32, 12, 12, 64, 5)
HALF = replace(CONV, dtype="float16", input_dtype="float16", output_dtype="float16")


def _share(problem: ConvProblem | LinearProblem | ConvPairProblem | LinearPairProblem, instructions: str) -> float:
    """Of the peak, at 1 TFLOP in 10 ms: 100 TFLOP/s; memory counts for nothing."""
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
def test_each_family_of_instructions_has_its_own_peak(problem: ConvProblem, instructions: str, peak: float) -> None:
    assert _share(problem, instructions) == pytest.approx(100 / peak, rel=1e-2)


def test_split_operands_are_multiplied_several_times() -> None:
    """Three products for each that counts; two where float16 holds one factor whole; one where it holds both."""
    first = ConvProblem(1, 28, 28, 32, 5, activation="relu", pool=2, input_dtype="uint8", dtype="float16x2")
    second = replace(CONV, activation="relu", pool=2, dtype="float16x2")
    pair = ConvPairProblem(first, second)
    assert executed_operations(pair) == 2 * first.flops + 3 * second.flops
    assert executed_operations(replace(pair, exact=True)) == first.flops + 2 * second.flops
    assert _share(pair, "wgmma") == pytest.approx(executed_operations(pair) / pair.flops / 9, rel=1e-2)
    products = [LinearProblem(1024, 128, dtype="float16x2"), LinearProblem(128, 10, argmax=True, dtype="float16x2")]
    both, flops = LinearPairProblem(products[0], products[1]), products[0].flops + products[1].flops
    assert executed_operations(both) == 3 * flops and executed_operations(replace(both, exact=True)) == 2 * flops
    assert [executed_operations(replace(products[0], exact=exact)) // products[0].flops for exact in (False, True)] == [
        3,
        2,
    ]
    assert executed_operations(HALF) == HALF.flops


@pytest.mark.parametrize("row", registry.VARIANTS, ids=lambda row: f"{row.operation} {row.name}")
def test_rows_say_what_their_sources_multiply_with(row: Variant) -> None:
    """The names of the instructions, or of the headers' functions for them, stand in the kernel's file."""
    text = row.path.read_text(encoding="utf-8")
    used = {"wgmma": "wgmma.cuh" in read_with_includes(row.path), "mma": "mma_" in text}
    found = "wgmma" if used["wgmma"] and row.only_arch == 90 else "mma" if used["mma"] else row.instructions
    assert row.instructions == found and row.instructions in ("fma", "hfma2", "mma", "wgmma")
    assert (row.instructions == "hfma2") == (row.name == "half2")
    for dtype in row.dtypes:
        if row.operation in ("conv", "gemm", "conv_pair", "gemm_pair") and dtype != "float64":
            assert peak_name(row.instructions, dtype) in PEAKS["tflops"]


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_every_loop_compiles_where_it_is_measured(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.lab.bench.peak import LOOPS, SOURCE

    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    assert set(LOOPS) == set(PEAKS["tflops"])
    for loop in LOOPS.values():
        if loop.serves(architecture_number(arch)):
            assert b"peak" in compile_kernel(SOURCE, {loop.constant: 1}, arch)


def test_pictures_and_text_name_every_peak() -> None:
    assert [short_peak_name(name) for name in PEAKS["tflops"]] == ["fp32", "tf32", "fp16", "fp16 hfma2", "fp16 wgmma"]
    found = document() | {"peaks": {"tflops": dict(PEAKS["tflops"]), "gbytes_per_s": 3000.0}}
    described = plots.roofline_chart(found, "conv1").partition("<desc")[2].partition("</desc>")[0]
    assert all(
        f"{short_peak_name(name)} {svg.format_number(peak)} TFLOP/s" in described
        for name, peak in PEAKS["tflops"].items()
    )


@pytest.mark.gpu
@pytest.mark.alone
def test_every_instruction_family_of_the_card_is_measured() -> None:
    """How fast is for bench to say: a test may share the card with others."""
    from app.cuda.device import describe_gpu
    from app.lab.bench.peak import LOOPS, measure_peaks

    arch = describe_gpu()["architecture"]
    found = measure_peaks(arch)["tflops"]
    assert set(found) == {name for name, loop in LOOPS.items() if loop.serves(architecture_number(arch))}
    assert all(rate > 0 for rate in found.values()), found
