"""What enters the tensor cores of a warpgroup is defined: read from the PTX of the kernels, without a GPU."""

import re

import pytest

from app.cuda.compiler import nvrtc, options, sources
from app.kernels.registry import VARIANTS
from app.kernels.variant import Variant
from tests.support.kernel_grid import served

ROWS = [
    pytest.param(row, dtype, id=f"{row.source.removesuffix('.cu')}-{dtype}")
    for row in VARIANTS
    if "wgmma" in row.technique
    for dtype in row.dtypes
]
PRODUCT = re.compile(r"wgmma\.mma_async\S*\s+\{([^}]*)\}")
WRITTEN = re.compile(r"(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+)")
REGISTER = re.compile(r"%f\d+")


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


def ptx_of(row: Variant, dtype: str) -> str:
    """The kernel for the first problem of that type, as the compiler hands it to the assembler."""
    binding, texts = nvrtc(), sources(row.path)
    problem = next(problem for problem in served(row, "sm_90a") if problem.dtype == dtype)
    headers = [name for name in texts if name != row.source]
    program = binding.createProgram(
        texts[row.source], row.source, [texts[name].encode() for name in headers], [name.encode() for name in headers]
    )
    try:
        flags = options(row.config(problem).defines, "sm_90a")
        binding.compileProgram(program, [flag.replace("=sm_90a", "=compute_90a") for flag in flags])
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
