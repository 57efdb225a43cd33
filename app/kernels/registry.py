"""Register all kernels: code that chooses, lists, tests, sweeps or measures variants finds their rows here.

File, entry point and name of a variant correspond: ``conv_02_direct.cu`` contains ``conv_direct``, which ``--conv
direct`` chooses. Numbers give the reading order: a step follows the step that it continues.
"""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar, cast

from app.base.errors import UserError, choices_hint
from app.cuda.compiler import architecture_number
from app.kernels.plain_problems import GROUP
from app.kernels.problems import ConvPairProblem, ConvProblem, Problem
from app.kernels.variant import TENSOR_CORES, Variant

# Operation → modules whose ``ROWS`` are its kernels. A run imports only those of the operations that it plans.
TABLES: dict[str, Sequence[str]] = {
    "conv": tuple(
        f"conv.rows.{name}"
        for name in ("direct", "as_gemm", "tensor_core", "register_patch", "toom_cook", "warpgroups")
    ),
    "gemm": ("gemm.gemm", "gemm.rows_by_count", "gemm.warpgroup"),
    "conv_pair": ("fused.conv_pair",),
    "gemm_pair": ("fused.gemm_pair",),
    **dict.fromkeys(("pool", "softmax", "activation", "argmax", "resize"), ("pointwise.pointwise",)),
}
# Operation → modules of the steps for any sizes: imported only if no other step supports a problem, or to compare
# measured times.
ANY_SIZES = {"conv_pair": ("fused.any_pair", "fused.any_warpgroups"), "gemm_pair": ("fused.any_product_pair",)}
# Operation → modules of the steps for sparse filters, imported only for these unless another table names them, too.
# Steps for any sizes follow them.
SPARSE = {"conv": ("conv.rows.warpgroups",), "conv_pair": ("fused.sparse_pair",)}
P = TypeVar("P", bound=Problem)
VARIANTS: list[Variant]
"""The rows of all operations."""


def __getattr__(name: str) -> list[Variant]:
    if name != "VARIANTS":
        raise AttributeError(name)
    return [row for operation in TABLES for row in variants(operation)]


@cache
def module_variants(module: str) -> list[Variant]:
    """Import a module of this package and return its rows, for all operations."""
    return [*importlib.import_module(f"{__package__}.{module}").ROWS]


def _variants_by_step(operation: str, modules: Sequence[str]) -> list[Variant]:
    rows = (row for module in dict.fromkeys(modules) for row in module_variants(module) if row.operation == operation)
    return sorted(rows, key=lambda row: row.step)


def variants(operation: str) -> list[Variant]:
    """Return all variants of an operation, sorted by step number."""
    return _variants_by_step(
        operation, [module for table in (ANY_SIZES, TABLES, SPARSE) for module in table.get(operation, ())]
    )


def find_variant(operation: str, requested: str, *others: str) -> Variant | None:
    """Return the variant named ``requested`` of these operations; None for "auto". Raises UserError if unknown."""
    if requested == "auto":
        return None
    known = {row.name: row for name in (operation, *others) for row in variants(name)}
    if requested not in known:
        raise UserError(f"unknown {operation} kernel '{requested}': {choices_hint(requested, ['auto', *known])}")
    return known[requested]


def eligible_variants(operation: str, problem: Problem, arch: str) -> Iterator[Variant]:
    """Yield the variants that ``auto`` may choose and that support the problem, the highest step first."""
    sparse = getattr(problem, "sparse", False)
    for modules in (SPARSE if sparse else TABLES)[operation], ANY_SIZES.get(operation, ()):
        for row in reversed(_variants_by_step(operation, modules)):
            if row.automatic and row.refusal_reason(problem, arch) is None and _is_worthwhile(row, problem, arch):
                yield row


def served_form(row: Variant, problem: P) -> P:
    """Return the problem, marked as 2:4 sparse if the variant supports only sparse filters.

    A problem whose channels are not whole groups of four is returned unchanged. Dense kernels take the same time for
    any weights, so times of both forms may be compared.
    """
    layer = problem.second if isinstance(problem, ConvPairProblem) else problem
    if row.sparse and isinstance(layer, ConvProblem) and layer.channels % GROUP == 0:
        return cast(P, replace(cast(ConvProblem | ConvPairProblem, problem), sparse=True))
    return problem


def _is_worthwhile(row: Variant, problem: Problem, arch: str) -> bool:
    """Return whether ``auto`` may choose a variant that supports the problem.

    On cards with tensor cores, a float16 layer that they do not speed up runs as fast in float32 on CUDA cores, with
    results stored in float16.
    """
    halves = isinstance(problem, ConvProblem) and problem.dtype == "float16"
    return row.worthwhile(problem, arch) and not (halves and row.min_arch < TENSOR_CORES <= architecture_number(arch))
