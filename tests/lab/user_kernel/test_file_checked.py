"""Test ``check FILE.cu``: verdicts on files, on the CPU and on the card; no temporary file is left."""

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app.base.errors import UserError
from app.cli import main
from app.lab.user_kernel.row import find_named_variant
from app.lab.user_kernel.template import kernel_template
from app.ladder.check.job import TOLD
from app.ladder.emulation import program
from tests.lab.user_kernel.odd_kernels import TREE_SUM, flat_kernel, shared_sum_kernel, sum_loops
from tests.support.host_kernels import skip_without_compiler
from tests.support.shell import Refuses, listing, python

SHAPE = ("--shape", "1,7,9,3,3,1")
SQUARE = """\
//@ kernel: conv
//@ TILE = 4
//@ block: TILE, TILE
//@ grid: ceil_div(OW, TILE), ceil_div(OH, TILE), images * M
//@ shared: (TILE * S + K) ** 2 * 4
//@ without: activation, padding, bytes
extern "C" __global__ void conv_of_mine(const float *x, const float *w, const float *bias, float *y, int) {
    extern __shared__ float tile[];
    constexpr int OW = (W - K) / S + 1, OH = (H - K) / S + 1, SIDE = (TILE - 1) * S + K;
    const int n = blockIdx.z / M, m = blockIdx.z % M;
    const int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int c = 0; c < C; c++) {
        for (int i = threadIdx.y; i < SIDE; i += TILE)
            for (int j = threadIdx.x; j < SIDE; j += TILE) {
                const int h = blockIdx.y * TILE * S + i, v = blockIdx.x * TILE * S + j;
                tile[i * SIDE + j] = h < H && v < W ? x[((n * C + c) * H + h) * W + v] : 0.0f;
            }
        __syncthreads();
        for (int p = 0; p < K; p++)
            for (int q = 0; q < K; q++)
                sum += tile[(threadIdx.y * S + p) * SIDE + threadIdx.x * S + q] * w[((c * K + p) * K + q) * M + m];
        __syncthreads();
    }
    if (row < OH && column < OW) y[((n * M + m) * OH + row) * OW + column] = HAS_BIAS ? sum + bias[m] : sum;
}
"""
# If shared memory began as zeros, as static arrays of C++ do, kernels that read unwritten elements would be right here
# and wrong on a card.
UNWRITTEN = SQUARE.replace("tile[i * SIDE + j] = h", "if (h > 0) tile[i * SIDE + j] = h")
NOT_WRITTEN = "map 0, row 0, column 0: found NaN from shared memory that no thread had written"
UNORDERED = TREE_SUM.replace(" __syncthreads();", "")
CLEARS_NEXT = flat_kernel(1).replace("sum;", "sum; if (at + 1 < images * M * OH * OW) y[at + 1] = 0;")
ENDLESS = "__device__ __noinline__ float f(int a) { return f(a) + 1; }"
IN_OTHER_ORDER = "run again on other images and weights, blocks and threads in another order, image 0, map 0, row 0,"
MISTAKES = {
    "a lost update": (shared_sum_kernel("total += sum;"), IN_OTHER_ORDER),
    "a tree without barriers": (shared_sum_kernel(UNORDERED), IN_OTHER_ORDER),
    "an order of blocks": (CLEARS_NEXT, IN_OTHER_ORDER),
    "an endless recursion": (
        flat_kernel(33, functions=ENDLESS, summed=sum_loops("f(0)")),
        r"mine.cu:7: it needs more than the 512 KB of local memory that a thread has \(thread 0 of",
    ),
    "a border": (SQUARE.replace("row < OH &&", ""), r"mine.cu:25: it writes y\[\d+\]: y has \d+ elements"),
    "a race": (SQUARE.replace("        __syncthreads();\n        for", "        for"), "image 0, map 0, row"),
    "little shared memory": (
        SQUARE.replace("(TILE * S + K) ** 2", "TILE * TILE"),
        r"mine.cu:\d+: it writes byte .* of shared memory",
    ),
    "an unwritten tile": (UNWRITTEN, NOT_WRITTEN),
    "an unwritten static array": (shared_sum_kernel(TREE_SUM).replace("x] =", "x | 1] ="), NOT_WRITTEN),
    "an output only added to": (
        SQUARE.replace("OW + column] =", "OW + column] +="),
        r"nothing was written, or only added \(outputs begin as NaN\)",
    ),
}


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder for the user's file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "SECONDS", 1)
    return tmp_path


def run_check(capsys: pytest.CaptureFixture[str], *words: Any, device: str = "cpu") -> tuple[int, str, str]:
    """Run ``check``, which must change no file; return exit code, output in one line, and errors."""
    if device == "cpu":
        skip_without_compiler()
    before = listing(Path.cwd())
    code = main(["check", *map(str, words), "--device", device])
    out, err = capsys.readouterr()
    assert listing(Path.cwd()) == before
    return code, " ".join(out.split()), err


def test_a_square_block_with_its_own_tile_is_right(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cwd / "mine.cu").write_text(SQUARE)
    code, text, _ = run_check(capsys, "mine.cu")
    assert code == 0 and "conv mine.cu on the processor" in text
    right, of = map(int, re.findall(r"right: (\d+) of (\d+)", text)[0])
    assert right == of >= 9  # shapes without activation, simpler forms of others, and three random ones
    assert "relu" not in text and "padding" not in text


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, reason = MISTAKES[mistake]
    (cwd / "mine.cu").write_text(source)
    code, text, _ = run_check(capsys, "mine.cu", *SHAPE)
    assert code == 1 and re.search(reason, text), text


def test_a_named_shape_needs_no_feature_that_the_kernel_lacks(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file begins with a byte order mark, as editors on Windows write it."""
    (cwd / "mine.cu").write_text(SQUARE.replace("without:", "without: bias,"), encoding="utf-8-sig")
    code, text, _ = run_check(capsys, "mine.cu", *SHAPE)
    assert code == 0 and "C1 7x9 M3 K3 S1 float32" in text and "right: 1 of 1" in text


@pytest.mark.parametrize("row", ["conv:tensor-core", "gemm:split-k", "conv:unrolled"])
def test_copies_of_other_kernels_pass(row: str, cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The copies use tensor cores, several launches or packed filters; test_check.py has one for Hopper."""
    (cwd / "mine.cu").write_text(kernel_template(find_named_variant(row), "mine.cu"))
    code, text, _ = run_check(capsys, "mine.cu", "--shape", "1,6,9,3,3,1" if row.startswith("conv") else "72,33")
    assert code == 0 and "WRONG" not in text


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (["mine.cu", "--conv", "direct"], "mine.cu and direct: name one kernel"),
        (["--conv", "direct", "--as", "direct"], "--as direct is for a file of your own"),
        (["mine.cu", "--as", "direct"], "mine.cu:1: kernel and as: the named row has its own launch"),
        (["bare.cu", "--as", "conv:none"], "unknown kernel 'none'"),
        (["none.cu"], "none.cu does not exist"),
        (["mine.cu", "--shape", "1,2"], "give C,H,W,M,K,S"),
        (["huge.cu"], "1,048,576 that are read"),
        (["ptx.cu"], "'ptx.cu' runs on a GPU alone: it has PTX"),
        (["grammar.cu"], r"grammar.cu does not compile for the processor: grammar.cu:\d+: [^(]*$"),
        (["never.cu"], r"never.cu:4: grid is 0, not 1 to 2,147,483,647 \(x, \d images\)$"),
    ],
)
def test_wrong_files_and_options_are_refused(words: list[str], pattern: str, cwd: Path, refuses: Refuses) -> None:
    skip_without_compiler()
    (cwd / "mine.cu").write_text(SQUARE)
    (cwd / "bare.cu").write_text(SQUARE.partition("extern")[2])
    (cwd / "huge.cu").write_bytes(b"\n" * (10 << 20))
    (cwd / "ptx.cu").write_text(SQUARE.replace("float sum = 0;", 'float sum = 0; asm("");'))
    (cwd / "grammar.cu").write_text(SQUARE.replace("float sum", "flaot sum"))
    (cwd / "never.cu").write_text(SQUARE.replace("grid: ceil_div(OW, TILE)", "grid: TILE - 4"))
    before = listing(cwd)
    refuses(["check", *words, "--device", "cpu"], pattern)
    assert listing(cwd) == before


def test_a_compiler_that_takes_too_long_is_stopped(
    cwd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "COMPILE_SECONDS", 1)
    parts = "F<A - 1, B, D>::a + F<A - 1, B + 1, D>::a + F<A - 1, B, D + 1>::a"
    bomb = f"template <int A, int B, int D> struct F {{ static constexpr unsigned a = {parts}; }};\n"
    end = "template <int B, int D> struct F<0, B, D> { static constexpr unsigned a = 1; };\n"
    text = SQUARE.replace('extern "C"', f'{bomb}{end}extern "C"')
    (cwd / "mine.cu").write_text(text.replace("float sum = 0;", "float sum = F<250, 0, 0>::a;"))
    code, _, err = run_check(capsys, "mine.cu", *SHAPE)
    assert code == 2 and "g++ takes more than 1 s" in err


def test_code_that_only_one_compiler_knows_is_reported(
    cwd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """g++ finds INFINITY in its headers, NVRTC clock64(). Without NVRTC, g++ alone decides."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    (cwd / "mine.cu").write_text(SQUARE.replace("float sum = 0;", "float sum = 0 / INFINITY;"))
    code, out, err = run_check(capsys, "mine.cu", *SHAPE)
    said = 'mine.cu:12 is right on the processor, but for a GPU it does not compile: identifier "INFINITY" is undefined'
    assert (code, out) == (2, "") and said in err
    (cwd / "mine.cu").write_text(SQUARE.replace("float sum = 0;", "float sum = 0 * clock64();"))
    assert "(it compiles for a GPU: check it on one)" in run_check(capsys, "mine.cu", *SHAPE)[2]
    (cwd / "mine.cu").write_text(SQUARE.replace("float sum = 0;", "float sum = 0 / INFINITY;"))
    monkeypatch.setattr("app.ladder.check.job.import_nvrtc", Mock(side_effect=UserError("missing")))
    assert run_check(capsys, "mine.cu", *SHAPE)[0] == 0


def test_a_program_that_waits_is_stopped(
    cwd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program uses no CPU time, so only the limit of wall-clock time ends it."""
    monkeypatch.setattr(program, "WAIT", 1)
    asleep = SQUARE.replace('extern "C"', 'extern "C" unsigned sleep(unsigned);\nextern "C"', 1)
    (cwd / "mine.cu").write_text(asleep.replace("float sum = 0;", "float sum = 0; sleep(100);"))
    code, text, _ = run_check(capsys, "mine.cu", *SHAPE)
    assert code == 1 and "it does not come to an end" in text


def test_the_temporary_folder_stays_empty(cwd: Path) -> None:
    """A fake g++ writes the files that are expected of it; the program that it makes ends at once."""
    (cwd / "mine.cu").write_text(SQUARE)
    for folder in ("tmp", "bin"):
        (cwd / folder).mkdir()
    (cwd / "bin" / "g++").write_text("#!/bin/sh\ntouch runtime.o\necho '#!/bin/sh' > kernel\nchmod +x kernel\n")
    (cwd / "bin" / "g++").chmod(0o700)
    said = f"from app.cli import main; raise SystemExit(main(['check', {str(cwd / 'mine.cu')!r}, '--device', 'cpu']))"
    path = f"{cwd / 'bin'}:/usr/bin:/bin"
    done = python(said, env={"PATH": path, "TMPDIR": str(cwd / "tmp"), "HOME": str(cwd / "tmp")})
    words = " ".join(done.stdout.split())
    assert done.returncode == 1 and words.count("it ends its program before all its blocks have run") == TOLD
    assert re.search(r"\(\d+ more wrong; --wide says what is wrong with each\)", words)
    left = [path for path in (cwd / "tmp").rglob("*") if ".cupy" not in path.parts]  # made as CuPy is imported
    assert not left


@pytest.mark.gpu
def test_verdicts_on_the_card(cwd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.lab.user_kernel.child.SECONDS", 5.0)
    monkeypatch.setattr("app.lab.user_kernel.child.STARTING", 25.0)
    (cwd / "mine.cu").write_text(SQUARE)
    code, text, _ = run_check(capsys, "mine.cu", device="cuda")
    assert code == 0 and "WRONG" not in text
    for old, new, pattern in (
        ("* K + q) * M", "* K + p) * M", "image 0, map 0, row 0, column 0: found"),
        ("p < K; p++", "p < K;", r"does not come to an end: stopped after \d+ s"),
        ("float sum = 0;", "float sum = ((const float *)16)[0];", "the card stopped it: .*illegal"),
        ("float sum = 0;", "float sum = nonsense;", "does not compile: "),
    ):
        (cwd / "mine.cu").write_text(SQUARE.replace(old, new, 1))
        code, text, _ = run_check(capsys, "mine.cu", *SHAPE, device="cuda")
        assert code == 1 and re.search(pattern, text), text
