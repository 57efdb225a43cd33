"""Test that cheating kernels are caught, each with one trick, and that correct unusual kernels are accepted.

On the CPU each runs on one small shape; on a card, ``check`` runs all shapes and ``bench`` times the kernel.
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.kernels.problems import ConvProblem, Problem
from app.lab.checking.cases import Case
from app.lab.user_kernel.row import open_user_kernel
from app.ladder.check.job import check_case_on_cpu
from tests.lab.user_kernel.odd_kernels import HONEST as ODD
from tests.lab.user_kernel.odd_kernels import PROBLEM, TREE_SUM, shared_sum_kernel
from tests.support.host_kernels import skip_without_compiler

STORE = "y[at] = honest(x, w, bias, at);"
WEIGHT = "w[((c * K + p) * K + q) * M + m]"
PLACE = "const int column = at % OW, row = at / OW % OH, m = at / (OW * OH) % M, n = at / (OW * OH * M);"
# Each thread computes one output.
HONEST = f"""\
//@ kernel: conv
//@ block: 64
//@ grid: ceil_div(images * M * OH * OW, 64)
//@ without: activation, padding, bytes
constexpr int OH = (H - K) / S + 1, OW = (W - K) / S + 1;

__device__ float honest(const float *x, const float *w, const float *bias, int at) {{
    {PLACE}
    float sum = 0;
    for (int c = 0; c < C; c++)
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++)
                sum += x[((n * C + c) * H + row * S + p) * W + column * S + q] * {WEIGHT};
    return HAS_BIAS ? sum + bias[m] : sum;
}}

extern "C" __global__ void cheat(const float *x, const float *w, const float *bias, float *y, int images) {{
    const int at = blockIdx.x * blockDim.x + threadIdx.x, outputs = images * M * OH * OW;
    if (at >= outputs) return;
    {STORE}
}}
"""
CACHED_WEIGHT = """\
__device__ float kept[1 << 16];
__device__ int filled[1 << 16];
__device__ float weight(const float *w, int k) {
    if (!filled[k]) kept[k] = w[k], filled[k] = 1;
    return kept[k];
}"""
COARSE_SUM = f"""\
{PLACE}
    float sum = HAS_BIAS ? bias[m] : 0;
    for (int c = 0; c < C; c++)
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++)
                sum += coarse(x[((n * C + c) * H + row * S + p) * W + column * S + q]) * coarse({WEIGHT});
    y[at] = sum;"""
WITHOUT_LAST_TAP = f"""\
const float sum = honest(x, w, bias, at);
    {PLACE}
    y[at] = sum - x[((n * C + C - 1) * H + row * S + K - 1) * W + column * S + K - 1] * w[(C * K * K - 1) * M + m];"""
AGAIN = (
    "run again on other images and weights, blocks and threads in another order, image 0, map 0, row 0, column 0: found"
)


class Cheat(NamedTuple):
    """A kernel that cheats. said: pattern of the error on the CPU; None if only ``bench`` on a card finds it."""

    source: str
    said: str | None


def edit_honest(said: str | None, store: str = STORE, *, before: str = "", weight: str = WEIGHT) -> Cheat:
    """Return the honest kernel with another last statement, weight, or lines before its functions."""
    head, functions, kernel = HONEST.split("\n\n")
    changed = "\n".join([head, before, functions.replace(WEIGHT, weight), "", kernel.replace(STORE, store)])
    return Cheat(changed, said)


CHEATS = {
    # Hopes that the right results already lie in the output.
    "writes_nothing": edit_honest("image 0, map 0, row 0, column 0: nothing was written", ""),
    # Looks for the correct results behind the output, where another array may lie.
    "copies_the_oracle": edit_honest(
        r"copies_the_oracle.cu:\d+: it reads y\[\d+\]: y has 1050 elements", "y[at] = y[at + (outputs + 63) / 64 * 64];"
    ),
    # Starts its work where the clock does not look.
    "starts_another_stream": edit_honest(
        r"starts_another_stream.cu does not compile for the processor: .*:\d+: expected",
        "later<<<1, 1, 0, (cudaStream_t)2>>>(x, w, bias, y, at);",
        before="""\
//@ entry: cheat
__global__ void later(const float *x, const float *w, const float *bias, float *y, int at) {
    y[at] = 0;
}""",
    ),
    # Computes once, and repeats these results in later runs.
    "caches_results": edit_honest(
        AGAIN,
        "if (!filled[at]) kept[at] = honest(x, w, bias, at), filled[at] = 1;\n    y[at] = kept[at];",
        before="__device__ float kept[1 << 20];\n__device__ int filled[1 << 20];",
    ),
    # Prepares the weights in its first run, and finds them ready in later ones.
    "caches_weights": edit_honest(AGAIN, before=CACHED_WEIGHT, weight="weight(w, ((c * K + p) * K + q) * M + m)"),
    # Computes in the first run, which may be the one that is checked; later it only looks busy.
    "counts_its_runs": edit_honest(
        AGAIN,
        f"if (runs[at]++ == 0) {STORE}\n    else y[at] = x[at % (C * H * W)];",
        before="__device__ int runs[1 << 20];",
    ),
    # Works only where the output still holds the bytes with which it is filled before a check.
    "skips_when_written": edit_honest(AGAIN, f"if (__float_as_uint(y[at]) != 0xFFFFFFFF) return;\n    {STORE}"),
    # Reads one weight too many, which changes no result.
    "reads_beyond": edit_honest(
        r"reads_beyond.cu:\d+: it reads w\[\d+\]: w has 90 elements",
        "const float sum = honest(x, w, bias, at);\n    y[at] = w[C * K * K * M + at % 4] == 7 ? 0 : sum;",
    ),
    # Is right if all images are equal.
    "equal_images": edit_honest(
        "image 1, map 0, row 0, column 0: found", "y[at] = honest(x, w, bias, at % (M * OH * OW));"
    ),
    # Is right if the images repeat after 251, as in a batch that is made of one block.
    "repeated_images": edit_honest(None, "y[at] = honest(x, w, bias, at % (251 * M * OH * OW));"),
    # Is right only for the layers that are timed.
    "timed_shape": edit_honest(
        "image 0, map 0, row 0, column 0: found 0", "y[at] = K == 5 && H % 4 == 0 ? honest(x, w, bias, at) : 0;"
    ),
    # Is right for the three images of a usual check, and lazy for more.
    "usual_numbers": edit_honest(
        "image 3, map 0, row 0, column 0: found 0", "y[at] = at / (M * OH * OW) < 3 ? honest(x, w, bias, at) : 0;"
    ),
    # Computes every other column, and copies it to its neighbour.
    "half_the_outputs": edit_honest(
        "image 0, map 0, row 0, column 1: found", "y[at] = honest(x, w, bias, at % OW % 2 ? at - 1 : at);"
    ),
    # Leaves out the last tap, whose product is small among many.
    "forgets_a_channel": edit_honest("image 0, map 0, row 0, column 0: found", WITHOUT_LAST_TAP),
    # Computes with 11 significant bits, though its type is float32.
    "coarse_numbers": edit_honest(
        "image 0, map 0, row 0, column",
        COARSE_SUM,
        before="__device__ float coarse(float value) { return __uint_as_float(__float_as_uint(value) & 0xFFFFE000); }",
    ),
    # Makes the next run easy: it fills the images with zeros.
    "changes_its_input": edit_honest(
        r"changes_its_input.cu:\d+: it writes to x, which it may only read",
        f"{STORE}\n    if (at < images * C * H * W) ((float *)x)[at] = 0;",
    ),
    # Keeps what it wants to remember behind the output.
    "writes_behind": edit_honest(
        r"writes_behind.cu:\d+: it writes y\[1082\]: y has 1050 elements",
        f"{STORE}\n    if (at == 0) y[outputs + 32] = y[0];",
    ),
    # Writes zero, the mean of all results, and hopes for a wide tolerance.
    "always_the_mean": edit_honest("image 0, map 0, row 0, column 0: found 0", "y[at] = 0;"),
    # Ends the emulating program before anyone looks at the output.
    "ends_the_program": edit_honest(
        "it ends its program before all its blocks have run", "_exit(0);", before='extern "C" void _exit(int);'
    ),
    # Asks the compiler for a file.
    "reads_a_file": edit_honest(
        r"reads_a_file.cu:\d+: #include \"/etc/passwd\" is refused", "y[at] = 0;", before='#include "/etc/passwd"'
    ),
}
# Cheats that a card cannot notice, or that are none there.
NOT_ON_A_CARD = ("reads_beyond", "ends_the_program")


def check_on_cpu(path: Path, problem: Problem, folder: Path) -> str | None:
    """Run a user's kernel on the CPU on one problem; return its first error, or None."""
    skip_without_compiler()
    try:
        with open_user_kernel(path) as row:
            reason = row.refusal_reason(problem, "sm_90a")
            assert reason is None, reason
            row.check_signatures(problem)
            return check_case_on_cpu(
                Case(row, problem, 5, 2 * int(np.random.default_rng().integers(99999))), folder, shared=True
            )
    except UserError as error:
        return str(error)


def write_kernel(folder: Path, source: str, name: str = "odd") -> Path:
    """Write a kernel's file and return its path."""
    path = folder / f"{name}.cu"
    path.write_text(source)
    return path


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_caught(name: str, tmp_path: Path) -> None:
    source, pattern = CHEATS[name]
    said = check_on_cpu(write_kernel(tmp_path, source, name), PROBLEM, tmp_path / "built")
    assert said is None if pattern is None else re.match(pattern, said or ""), said


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*(name for name in CHEATS if name not in NOT_ON_A_CARD), "honest"])
def test_a_cheat_is_caught_on_the_card(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both commands catch it; only ``bench``, which runs many images, catches repeated images."""
    expected = {"honest": 0, "reads_a_file": 2}.get(name, 1)
    path = str(write_kernel(tmp_path, HONEST if name == "honest" else CHEATS[name].source, name))
    assert main(["check", path]) == (0 if name == "repeated_images" else expected)
    assert main(["bench", path, "--shape", "3,12,12,8,5,1", "--batch", "1000", "--only", "direct"]) == expected
    assert ("WRONG" in capsys.readouterr().out) == (expected == 1)


@pytest.mark.parametrize("name", [*ODD, "the one that cheats are made of"])
def test_an_honest_odd_kernel_is_accepted(name: str, tmp_path: Path) -> None:
    text, problem = ODD.get(name, (HONEST, PROBLEM))
    assert check_on_cpu(write_kernel(tmp_path, text), problem, tmp_path / "built") is None


def test_many_threads_have_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ladder.emulation.program.SECONDS", 1)
    skip_without_compiler()
    with open_user_kernel(write_kernel(tmp_path, shared_sum_kernel(TREE_SUM))) as row:
        assert check_case_on_cpu(Case(row, ConvProblem(1, 40, 40, 1, 1, 1), 50), tmp_path / "one", shared=True) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", ODD)
def test_odd_kernels_on_the_card(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(write_kernel(tmp_path, ODD[name][0]))]) == 0, capsys.readouterr().out
