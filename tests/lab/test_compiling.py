"""Test what is compiled before it is measured, on all cores until Ctrl-C, and the counting of its instructions."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
from tqdm import tqdm

from app.cuda.compiler import is_cached
from app.kernels import registry
from app.kernels.plain_problems import ArgmaxProblem
from app.kernels.problems import LinearProblem, Problem
from app.kernels.variant import Variant
from app.lab.bench import compiling
from app.lab.bench.compiling import compile_variants
from app.planning import tuning
from app.tools import machine_code, precompile, resources
from app.tools.machine_code import CLASSES, OTHER, hottest_loop, parse_functions
from tests.support.shell import user_error


def test_served_rows_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    served: list[tuple[Problem, Variant]] = [
        (ArgmaxProblem(10), registry.variants("argmax")[0]),
        (LinearProblem(20, 10), next(row for row in registry.variants("gemm") if row.name == "naive")),
    ]
    no_tuning = tuning.load("no such card")
    compile_variants(served, "sm_80", no_tuning)
    for problem, row in served:
        assert is_cached(
            row.path, row.launch_config(problem, no_tuning.parameters(problem, row, "sm_80")).defines, "sm_80"
        )


def test_refused_rows_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    problem = LinearProblem(20, 10, dtype="float16", input_dtype="float16", output_dtype="float16")
    hopper = [(problem, row) for row in registry.variants("gemm") if row.refusal_reason(problem, "sm_75") is not None]
    assert hopper
    compile_variants(hopper, "sm_75", tuning.load("no such card"))
    assert not [*tmp_path.rglob("*.cubin")]


# A loop that multiplies twice, with a loop within it that copies; before it a loop that multiplies once.
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
    assert hottest_loop(code, labels) == {"instructions": 7, **dict.fromkeys(CLASSES, 0), OTHER: 0} | counted
    assert hottest_loop(straight, others) is None  # the loop at a kernel's end multiplies nothing
    assert hottest_loop(code[:3], labels) and not hottest_loop(code[:3] + 2 * straight[:1], labels)


def test_without_the_tool_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
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
    """It comes when all are in the queue of the threads, and the main thread waits for none yet."""
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
