"""Test headers of users' kernels: arithmetic, the rows that they define, and errors of one line."""

import random
import re
from pathlib import Path

import numpy as np
import pytest

from app.cli import main
from app.kernels import registry
from app.kernels.problems import ConvProblem, LinearProblem, PoolProblem
from app.kernels.variant import ceil_div
from app.lab.checking.cases import SHAPES
from app.lab.checking.user_cases import user_cases
from app.lab.user_kernel.expressions import BadExpressionError, evaluate, names_in_expression, parse_expressions
from app.lab.user_kernel.row import UserVariant, find_named_variant, open_user_kernel
from app.lab.user_kernel.template import LAUNCHES, kernel_template
from tests.support.shell import Refuses, listing, user_error

NAMES = {"OH": 24, "TILE": 16, "M": 5, "images": 3}
SIGNATURE = "(const INPUT *x, const WEIGHT *w, const REAL *bias, OUTPUT *y, int images)"
KERNEL = f'extern "C" __global__ void k{SIGNATURE} {{}}\n'
GOOD = "//@ kernel: conv\n//@ block: 256\n//@ grid: images, M\n"


def evaluate_text(text: str) -> int:
    (node,) = parse_expressions(text)
    assert names_in_expression(node) <= NAMES.keys()
    return evaluate(node, NAMES)


POSITIVE = "({1} ** 2 + 1)"
OPERATIONS = (
    *("({0} + {1})", "({0} - {1})", "({0} * {1})", f"({{0}} / {POSITIVE})", f"({{0}} % {POSITIVE})", "-{0}"),
    *(f"ceil_div({{0}}, {POSITIVE})", "max({0}, {1})", "min({0}, {1})", "({0} if {1} else 7)", "({0} < {1}) + 1"),
    *("({0} <= {1}) + 1", "({0} == {1}) + 1", "({0} != {1}) + 1", "({0} > {1}) + 1", "({0} >= {1}) + 1"),
)


def test_arithmetic_agrees_with_python() -> None:
    drawn = random.Random(0)

    def expression(depth: int) -> str:
        if depth == 0:
            return str(drawn.choice([*NAMES, drawn.randint(1, 40)]))
        return drawn.choice(OPERATIONS).format(expression(depth - 1), expression(depth - 1))

    assert evaluate_text("OH / TILE * 4 ** 2 - -1") == 17
    for _ in range(400):
        text = expression(3)
        if len(text) <= 200:
            assert evaluate_text(text) == eval(text.replace("/", "//"), {**NAMES, "ceil_div": ceil_div}), text


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "open('/etc/passwd')", "().__class__", "[1][0]", "f'{1}'", "lambda: 1",
        "1.5", "True", "'a'", "2 ** 99", "2 ** -1", "9 ** 9 ** 9 ** 9", "1 / 0", "4611686018427387904 * 1",
        "(x := 1)", "*x", "x for x in y", "ceil_div(1)", "max(1, 2, 3)", "print(1, 2)", "1,", "", ")(", "1 <= 2 <= 3",
        "1" * 201, "(" * 150 + "1" + ")" * 40, "-" * 199 + "1 1", "not 1", "7 // 2", "min", "ceil_div", "~1", "1 and 2",
        "a.b", "ceil_div(a=1, b=2)",
        "\0", "1 if 1", "OH(1, 2)", "2 ** 16 ** 16 * 2",
    ],
)  # fmt: skip
def test_other_expressions_are_refused(text: str) -> None:
    with pytest.raises(BadExpressionError):
        for node in parse_expressions(text):
            assert names_in_expression(node) <= NAMES.keys(), "an unknown name, which the header refuses"
            evaluate(node, NAMES)
        if text == "1,":  # a comma too many is as in Python
            raise BadExpressionError


def make_row(path: Path, header: str, code: str = KERNEL, like: str | None = None) -> UserVariant:
    path.write_text(header + code)
    with open_user_kernel(path, like) as row:
        return row


def test_a_header_defines_a_row(tmp_path: Path) -> None:
    header = GOOD.replace("256", "TILE, 2").replace("//@ block", "//@ TILE = 8 * K // the side\n//@ block")
    header += "//@ shared: TILE * REAL_BYTES\n//@ types: fp32, float16\n//@ without: padding, bytes\n"
    row = make_row(tmp_path / "my-tile.cu", header)
    assert (row.operation, row.name, row.entry, row.dtypes) == ("conv", "my-tile.cu", "k", ("float32", "float16"))
    assert not row.path.exists() and row not in registry.VARIANTS
    problem = ConvProblem(3, 9, 8, 5, 2)
    config = row.launch_config(problem)
    (launch,) = config.launches
    assert (launch.threads, launch.block, launch.shared_bytes) == (32, (16, 2, 1), 64)
    assert launch.grid(7) == (7, 5, 1)
    assert {"TILE": 16, "C": 3, "H": 9, "M": 5, "K": 2, "SHARED_BYTES": 64}.items() <= config.defines.items()
    assert "OH" not in config.defines  # code may name it
    assert row.refusal_reason(problem, "sm_75") is None
    assert row.refusal_reason(ConvProblem(3, 9, 8, 5, 3, padding=1), "sm_75") == "is without padding"
    assert row.refusal_reason(ConvProblem(3, 9, 8, 5, 2, input_dtype="uint8"), "sm_75") == "is without bytes"
    assert row.refusal_reason(ConvProblem(3, 9, 8, 5, 2, pool=2), "sm_75") == "does not pool"


def test_padding_is_tried_without_bias_too(tmp_path: Path) -> None:
    """All usual shapes with padding have a bias; a kernel without bias is checked with padding, too."""
    for without, tried in (("bias, activation", True), ("bias, activation, padding", False)):
        row = make_row(tmp_path / "mine.cu", f"{GOOD}//@ without: {without}\n")
        shapes = [case.problem for case in user_cases(row, "sm_90a", np.random.default_rng(0))]
        assert any(isinstance(one, ConvProblem) and one.padding > 0 for one in shapes) == tried


def test_a_header_takes_the_launch_of_another_row(tmp_path: Path) -> None:
    code = (registry.find_variant("conv", "shared-tile") or pytest.fail()).path.read_text()
    problem = ConvProblem(3, 31, 29, 5, 2)
    for header, like in (("//@ as: conv:shared-tile\n//@ TILE = 8\n", None), ("//@ TILE = 8\n", "shared-tile")):
        row = make_row(tmp_path / "mine.cu", header + "//@ types: fp32\n//@ LENGTH = C * K\n", code, like)
        (launch,) = row.launch_config(problem).launches
        other = find_named_variant("shared-tile").launch_config(problem, {"TILE": 8})
        assert (launch.threads, launch.grid(3), launch.scalars) == (64, other.launches[0].grid(3), (*problem.sizes, 8))
        assert row.launch_config(problem).defines["LENGTH"] == 6 and row.dtypes == ("float32",)
        row.check_signatures(problem)


@pytest.mark.parametrize("entry", LAUNCHES)
def test_example_lines_of_a_template_are_valid(entry: str, tmp_path: Path) -> None:
    text = kernel_template(find_named_variant(entry.replace("_", ":")), "new.cu")
    more = re.findall(r"^//   (//@ (?:TILE|shared|without).*?)  ", text, re.MULTILINE)
    row = make_row(tmp_path / "new.cu", "\n".join([*more, text]), "")
    aligned = re.search(r'^(extern "C" .*\()const .*\n( +)', text, re.MULTILINE)
    assert aligned is None or len(aligned[1]) == len(aligned[2])  # the second line of parameters
    assert len(more) == 3 and row.launch_config(SHAPES[row.operation][0]).launches[0].shared_bytes == 1024


@pytest.mark.parametrize("row", [one for kind in SHAPES for one in registry.variants(kind) if not one.needs_cublas],
                         ids=lambda row: f"{row.operation}:{row.name}")  # fmt: skip
def test_the_template_of_every_row_has_its_launch(row: object, tmp_path: Path) -> None:
    assert isinstance(row, registry.Variant)
    path = tmp_path / "new.cu"
    path.write_text(kernel_template(row, "new.cu"))
    with open_user_kernel(path) as own:
        assert own.dtypes == row.dtypes
        assert own.entry == (f"my_{row.operation}" if row.entry in LAUNCHES else row.entry)
        served = [one for one in SHAPES[row.operation] if row.refusal_reason(one, "sm_90a") is None]
        assert served == [one for one in SHAPES[row.operation] if own.refusal_reason(one, "sm_90a") is None]
        for problem in served:
            own.check_signatures(problem)
            mine, other = (
                [(one.threads, one.grid(11), one.scalars) for one in each.launch_config(problem).launches]
                for each in (own, row)
            )
            assert mine == other


BAD = {
    "no header": ("", "does not say what it computes: begin it with"),
    "no key": ("//@ kernel: conv\n//@ blocks\n", r":2: 'blocks' is neither"),
    "unknown key": (GOOD + "//@ gird: 1\n", ":4: unknown key 'gird': choose one of .*; did you mean grid"),
    "twice": (GOOD + "//@ block: 1\n", ":4: block stands in line 2, too: give it once"),
    "no launch": ("//@ kernel: conv\n//@ block: 1\n", r":1: there is no line '//@ grid: …'"),
    "operation": (GOOD.replace("conv", "cov"), ":1: kernel: unknown operation 'cov': .*did you mean conv"),
    "two operations": (GOOD.replace("conv", "conv, gemm"), "kernel needs one value"),
    "empty": (GOOD + "//@ types:\n", "types needs a value"),
    "type": (GOOD + "//@ types: fp33\n", "types: unknown 'fp33'"),
    "int8": (GOOD + "//@ types: int8\n", "no kernel of a single layer computes in int8"),
    "name": (GOOD.replace("images, M", "images, N"), ":3: grid: unknown name 'N': choose one of"),
    "images": (GOOD.replace("256", "images"), ":2: block: unknown name 'images'"),
    "later constant": ("//@ A = B\n//@ B = 1\n" + GOOD, ":1: A: unknown name 'B'"),
    "small letters": ("//@ tile = 1\n" + GOOD, ":1: tile is no name of a constant"),
    "a template's": ("//@ T = 3\n" + GOOD, ":1: T is taken by a size, a type or the kernels' headers"),
    "a size": ("//@ K = 3\n" + GOOD, ":1: K is taken by a size"),
    "arithmetic": (GOOD.replace("256", "open('x')"), ":2: block has .*open.*: it may have whole numbers"),
    "four": (GOOD.replace("256", "1, 1, 1, 1"), ":2: block has 4 values, more than 3"),
    "without": (GOOD + "//@ without: speed\n", ":4: without: unknown 'speed': choose one of bias"),
    "arguments": (GOOD + "//@ arguments: DEPTH\n", ":4: arguments: unknown 'DEPTH'"),
    "as and grid": ("//@ as: direct\n//@ grid: 1\n", ":2: grid and as: the named row has its own launch"),
    "as nothing": ("//@ as: conv:dirct\n", "unknown kernel 'dirct': .*did you mean direct"),
    "as cublas": ("//@ as: conv:cublas\n", "multiplies in a library"),
    "entry": (GOOD + "//@ entry: other\n", "there is no function 'other': choose one of k"),
    "types of a row": ("//@ as: conv:constant\n//@ types: fp16\n", "constant has no float16"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_header_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    header, pattern = BAD[case]
    assert re.search(pattern, user_error(lambda: make_row(tmp_path / "mine.cu", header)))


@pytest.mark.parametrize(
    ("code", "pattern"),
    [
        ("void k() {}", "has no kernel: begin its function"),
        ("__global__ void k() {}", "has no kernel: begin its function"),
        (KERNEL + KERNEL.replace("k(", "l("), "has 2 kernels: name one by '//@ entry: k'"),
        (
            KERNEL.replace(", int images", ""),
            r"k takes \(.*OUTPUT \*y\), but is launched with x, w, bias, y, int images",
        ),
        (KERNEL.replace("int images", "long long images"), "k takes 'long long images', but is launched with an int"),
    ],
)
def test_a_function_that_cannot_be_launched_is_refused(code: str, pattern: str, tmp_path: Path) -> None:
    def tried() -> None:
        make_row(tmp_path / "mine.cu", GOOD, code).check_signatures(ConvProblem(1, 9, 8, 5, 3))

    assert re.search(pattern, user_error(tried))


def test_impossible_launches_have_a_reason(tmp_path: Path) -> None:
    problem = ConvProblem(1, 9, 8, 5, 3)
    for old, new, reason in (
        ("256", "2048", "mine.cu:2: block is 2,048, not 1 to 1,024"),
        ("256", "64, 32", "mine.cu:2: block has 2,048 threads, more than 1,024"),
        ("256", "9" * 20, f"mine.cu:2: block '{'9' * 20}' is too large"),
        ("256", "256 / (S - 1)", "mine.cu:2: block divides by zero"),
        ("//@ block", "//@ shared: 300000\n//@ block", "needs 300,000 bytes of shared memory"),
    ):
        assert reason in str(make_row(tmp_path / "mine.cu", GOOD.replace(old, new)).refusal_reason(problem, "sm_90a"))
    large = make_row(tmp_path / "mine.cu", GOOD.replace("images, M", "images, M * 99999"))
    (launch,) = large.launch_config(problem).launches
    assert user_error(lambda: launch.grid(3)) == "mine.cu:3: grid is 499,995, not 1 to 65,535 (y, 3 images)"
    row = make_row(tmp_path / "mine.cu", "//@ kernel: pool\n//@ block: 1\n//@ grid: PH\n")
    assert row.launch_config(PoolProblem(3, 7, 9, 3, 2, True)).launches[0].grid(1) == (3, 1, 1)
    row = make_row(tmp_path / "mine.cu", "//@ kernel: fc\n//@ block: 1\n//@ grid: N, DEPTH\n")
    assert row.launch_config(LinearProblem(5, 3)).launches[0].grid(1) == (3, 5, 1)


def test_init_never_replaces_a_file(tmp_path: Path, refuses: Refuses, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new.cu"
    assert main(["check", "--init", str(path), "--as", "direct"]) == 0
    said = capsys.readouterr().out
    assert (
        said.startswith(f"wrote {path}, a copy of conv direct: change it, then run\n")
        and "//@ kernel: conv" in path.read_text()
    )
    before = listing(tmp_path)
    for options in ([], ["--overwrite"]):
        refuses(["check", "--init", path, *options], "new.cu exists: name another --init, or remove it first")
    refuses(["check", "--init", tmp_path / "a b.cu"], "name the file with letters")
    assert listing(tmp_path) == before
