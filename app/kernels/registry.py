"""The list of all kernels: code that chooses, lists, tests, sweeps or measures variants reads ``VARIANTS``.

File, entry point and name of a variant correspond: ``conv_02_direct.cu`` holds ``conv_direct``, chosen by ``--conv
direct``. Numbers give the reading order: a step follows the one that it continues.
"""

from app.base.errors import UserError, choose_one_of
from app.kernels.conv.rows.as_gemm import CONV_GEMM_ROWS
from app.kernels.conv.rows.direct import CONV_ROWS
from app.kernels.conv.rows.register_patch import CONV_PATCH_ROWS
from app.kernels.conv.rows.tensor_core import TENSOR_CORE_ROW
from app.kernels.conv.rows.toom_cook import TOOM_COOK_ROW
from app.kernels.fused.any_pair import ANY_PAIR_ROW
from app.kernels.fused.any_product_pair import ANY_PRODUCT_PAIR_ROW
from app.kernels.fused.conv_pair import CONV_PAIR_ROWS
from app.kernels.fused.gemm_pair import GEMM_PAIR_ROWS
from app.kernels.gemm.gemm import GEMM_ROWS
from app.kernels.gemm.warpgroup import WARPGROUP_ROW
from app.kernels.pointwise.pointwise import OTHER_ROWS
from app.kernels.problems import Problem
from app.kernels.variant import Variant

VARIANTS: list[Variant] = [
    *CONV_ROWS,
    *CONV_GEMM_ROWS,
    TENSOR_CORE_ROW,
    *CONV_PATCH_ROWS,
    TOOM_COOK_ROW,
    *GEMM_ROWS,
    WARPGROUP_ROW,
    ANY_PAIR_ROW,
    ANY_PRODUCT_PAIR_ROW,
    *CONV_PAIR_ROWS,
    *GEMM_PAIR_ROWS,
    *OTHER_ROWS,
]


def variants(operation: str) -> list[Variant]:
    """Return the variants of an operation in the ladder's order."""
    return sorted((row for row in VARIANTS if row.operation == operation), key=lambda row: row.step)


def find(operation: str, requested: str, *others: str) -> Variant | None:
    """Return the requested variant of an operation or of ``others``; None for ``auto``. Raises UserError if unknown."""
    known = {row.name: row for name in (operation, *others) for row in variants(name)}
    if requested != "auto" and requested not in known:
        raise UserError(f"unknown {operation} kernel '{requested}': {choose_one_of(requested, ['auto', *known])}")
    return known.get(requested)


def eligible(operation: str, problem: Problem, arch: str) -> list[Variant]:
    """Return the automatic variants that serve the problem, the highest step first: the candidates of ``auto``."""
    rows = [row for row in reversed(variants(operation)) if row.automatic]
    return [row for row in rows if row.refusal(problem, arch) is None]
