"""What a precision is stands in one file: no other table of precisions in the application or beside it."""

import ast
from pathlib import Path

import pytest

from app.kernels import registry
from app.precision import BY_DTYPE, BY_NAME, OF_PEERS, OFFERED, ROWS, SHORT, SINGLE

ROOT = Path(__file__).parent.parent
NAMES = {*BY_NAME, *BY_DTYPE}
# Where two or more types may stand together, and why that is no table of precisions.
EXCEPTIONS = {
    "app/kernels": "what each kernel is in its types stands in its row, beside its .cu file",
    "app/network/weights.py": "how weights lie in their files",
    "app/bench/ladder/peak.py": "the loops of peak.cu",
    "app/bench/ladder/oracle.py": "what NumPy rounds to",
    "app/bench/ladder/tolerance.py": "one rounding of a number in memory",
    "docs/generate/targets.py": "times that were asked for",
    "docs/generate/gains.py": "what each kernel improves on",
}


def copies(text: str) -> list[int]:
    """Lines of the dicts with two or more precisions or types as keys, and of other literals with so many in them."""
    found = []
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
                assert excepted(name), f"{name}, lines {lines}: read app/precision.py"
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
    pairs = {dtype for row in registry.VARIANTS if row.operation.endswith("_pair") for dtype in row.dtypes}
    alone = {dtype for row in registry.VARIANTS if row.operation in ("conv", "gemm") for dtype in row.dtypes}
    for row in ROWS:
        assert SHORT[row.dtype] == row.name and row.stored in BY_DTYPE
        assert row.paired == (row.dtype in pairs)
        assert bool(row.fallback) == (row.dtype not in alone) and (not row.fallback or row.fallback in alone)
        assert not row.offered or BY_NAME[row.peers].jax
        assert bool(row.jax) == (row.name in OF_PEERS)
    assert all(row.cudnn for row in SINGLE), "bench puts cuDNN beside every kernel of one convolution"
    assert [row.name for row in OFFERED] == ["fp32", "fp32x", "tf32", "fp16"]
