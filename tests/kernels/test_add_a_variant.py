"""Test that one .cu file and one registry row add a kernel, which is listed, compiled, chosen and run like others."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from app.cli import main
from app.cuda.compiler import compile_kernel
from app.kernels import registry
from app.kernels.problems import ConvProblem, tuning_key
from app.kernels.variant import (
    FLOATS,
    LaunchConfig,
    Parameters,
    Variant,
    configure_elementwise,
    conv_size_defines,
    type_defines,
)
from app.network.definitions import LENET5
from app.planning.matching import Choices
from app.planning.plan import ExecutionPlan, plan
from app.planning.tuning import TunedResult, Tuning
from tests.support.networks_for_tests import random_graph
from tests.support.requests import resolved

SOURCE = r"""// A convolution of one's own: one thread per output element, sizes as constants.
//
// From: this test. Data: ...
#include "common.cuh"

extern "C" __global__ void conv_my_own(const INPUT *x, const WEIGHT *w, const REAL *bias, OUTPUT *y, int images) {
    const int height = (H - K) / S + 1, width = (W - K) / S + 1;
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (long long)images * M * height * width) return;
    const int column = at % width, row = at / width % height, map = at / (width * height) % M;
    const long long image = at / (width * height) / M;
    REAL sum = 0;
    for (int c = 0; c < C; c++)
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++) {
                const REAL pixel = REAL(x[((image * C + c) * H + row * S + p) * W + column * S + q]);
                sum = fused_multiply_add(pixel, REAL(w[((c * K + p) * K + q) * M + map]), sum);
            }
    y[at] = OUTPUT(epilogue<HAS_BIAS, ACTIVATION>(sum, HAS_BIAS ? bias[map] : REAL(0)));
}
"""
NAME = "my-own"
ROWS = registry.module_variants("conv.rows.direct")


def configure(problem: ConvProblem, _: Parameters) -> LaunchConfig:
    """Return a launch configuration with one thread per output element."""
    return configure_elementwise(
        type_defines(problem) | conv_size_defines(problem), problem.maps * prod(problem.conv_output_size)
    )


@pytest.fixture
def row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Variant]:
    """Add a row to the registry, with its .cu file in a temporary folder, and yield it; remove it afterwards."""
    about = "the plainest that can be written"
    added = Variant("conv", 99, "my_own", "this test", configure, FLOATS, summary=about, folder=tmp_path)
    added.path.write_text(SOURCE, encoding="utf-8")
    ROWS.append(added)
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    yield added
    ROWS.remove(added)


def test_new_kernel_is_listed(row: Variant, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels"]) == 0
    out = capsys.readouterr().out
    assert NAME in out and row.summary in out


def test_new_kernel_compiles_with_the_project_headers(row: Variant) -> None:
    problem = ConvProblem(3, 11, 13, 5, 3, 2, bias=True, activation="tanh", input_dtype="uint8")
    for arch in ("sm_75", "sm_90a", "sm_120"):
        assert b"conv_my_own" in compile_kernel(row.path, row.launch_config(problem).defines, arch)


def _chosen_kernels(planned: ExecutionPlan) -> dict[str, str]:
    return {node.head.name: node.variant.name for node in planned.nodes if node.head.operation == "conv"}


def test_new_kernel_can_be_chosen_by_option(row: Variant) -> None:
    for text, first in ((NAME, NAME), (f"conv1=direct,conv2={NAME}", "direct")):
        graph, chosen = resolved(f"--conv {text}")
        assert _chosen_kernels(plan(graph, "sm_90a", chosen)) == {"conv1": first, "conv2": NAME}


@pytest.mark.parametrize("automatic", [False, True])
def test_auto_chooses_new_kernel_only_if_its_row_is_automatic(row: Variant, automatic: bool) -> None:
    """An automatic row is chosen as the highest step. Fusion is off, because the new kernel cannot pool."""
    graph, choices = random_graph(LENET5), Choices(fuse=False)
    first = {node.head.name: node.problem for node in plan(graph, "sm_90a", choices).nodes}["conv1"]
    fastest = Tuning(
        {tuning_key(first): {NAME: TunedResult({}, 0.001, 10_000), "register-patch": TunedResult({}, 1.0, 10_000)}}
    )
    changed = replace(row, automatic=True) if automatic else row
    ROWS[ROWS.index(row)] = changed
    for known in (Tuning(), fastest):  # measured or not
        planned = plan(graph, "sm_90a", replace(choices, tuning=known))
        assert _chosen_kernels(planned)["conv1"] == (NAME if automatic else "register-patch")
    ROWS[ROWS.index(changed)] = row


def test_graph_command_shows_new_kernel(row: Variant, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "--conv", NAME]) == 0
    assert NAME in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
def test_new_kernel_equals_the_reference(row: Variant, dtype: str) -> None:
    """Compare by the check that bench and sweep apply to every kernel; it must reject a wrong sum."""
    from app.cuda.device import describe_gpu
    from app.lab.bench.compiling import WrongResult
    from app.lab.bench.trial import Trial

    problem = ConvProblem(3, 11, 13, 5, 3, 2, bias=True, activation="relu", dtype=dtype)
    problem = replace(problem, input_dtype=dtype, output_dtype=dtype)
    trial = Trial(problem, 67, describe_gpu()["architecture"])
    assert 0 < trial.check_outputs(trial.bind_variant(row)) <= 1
    row.path.write_text(SOURCE.replace("c < C", "c < C - 1"), encoding="utf-8")
    with pytest.raises(WrongResult):
        trial.check_outputs(trial.bind_variant(row))


@pytest.mark.gpu
def test_application_runs_with_new_kernel(row: Variant, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cuda", "--batch", "1000", "--repeat", "1", "--conv", NAME]) == 0
    assert NAME in capsys.readouterr().out
