"""Configure the launch of a user's kernel for a problem, from the expressions of its header."""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from app.base.errors import UserError
from app.kernels.plain_problems import ITEMSIZE
from app.kernels.pointwise.pointwise import pool_defines
from app.kernels.problems import ConvProblem, LinearProblem, PoolProblem, Problem
from app.kernels.variant import (
    MAX_GRID_Y,
    Grid,
    KernelLaunch,
    LaunchConfig,
    Parameters,
    Unfit,
    Variant,
    conv_size_defines,
    type_defines,
)
from app.lab.user_kernel.expressions import BadExpressionError, evaluate
from app.lab.user_kernel.header import Header

MAX_GRID_X = 2**31 - 1
MAX_BLOCK = 1024
MAX_CONSTANT = 2**31 - 1
TYPES = ("INPUT", "WEIGHT", "REAL", "OUTPUT")
# Feature that the key ``without`` of a header may name → function that returns whether a problem needs it.
NEEDS_FEATURE: dict[str, Callable[[Any], bool]] = {
    "bias": lambda problem: problem.bias,
    "activation": lambda problem: bool(problem.activation),
    "padding": lambda problem: problem.padding > 0 or getattr(problem, "extra_padding", 0) > 0,
    "stride": lambda problem: problem.stride > 1,
    "bytes": lambda problem: problem.input_dtype == "uint8",
    "mean": lambda problem: not problem.is_max,
    "max": lambda problem: problem.is_max,
    "ceil": lambda problem: problem.ceil,
}


def problem_defines(problem: Problem) -> dict[str, str | int]:
    """Return the compile-time constants of a problem by name: types, sizes and epilogue."""
    match problem:
        case ConvProblem():
            return type_defines(problem) | conv_size_defines(problem)
        case LinearProblem():
            return type_defines(problem) | {"DEPTH": problem.inputs, "N": problem.outputs}
        case PoolProblem():
            return pool_defines(problem)
    raise AssertionError(problem)


def problem_sizes(problem: Problem) -> dict[str, int]:
    """Return the sizes of a problem and of its types in bytes, by the names that a header's expressions use."""
    defines = problem_defines(problem)
    found = {name: value for name, value in defines.items() if isinstance(value, int)}
    if isinstance(problem, ConvProblem):
        found |= dict(zip(("OH", "OW"), problem.conv_output_size, strict=True))
    return found | {f"{one}_BYTES": ITEMSIZE[str(defines[one])] for one in TYPES if one in defines}


def unsupported_feature_reason(without: Sequence[str], problem: Any) -> str | None:
    """Return why a kernel cannot compute the problem; None if it can. without: features it lacks, such as ``bias``."""
    if getattr(problem, "argmax", False):
        return "does not take the argmax"
    missing = next((feature for feature in without if NEEDS_FEATURE[feature](problem)), None)
    return None if missing is None else f"is without {missing}"


def evaluate_constants(header: Header, problem: Problem) -> tuple[dict[str, int], dict[str, int]]:
    """Return two dicts of name → value: the header's constants, and all that its expressions may use. Raises Unfit."""
    names, constants = problem_sizes(problem), {}
    for name, expression in header.constants.items():
        names[name] = constants[name] = _evaluate(header, name, expression, names, 0, MAX_CONSTANT)
    return constants, names


def configure_from_header(header: Header, problem: Problem, _: Parameters) -> LaunchConfig:
    """Return the launch that the header describes, for a problem. Raises Unfit if it is impossible."""
    constants, names = evaluate_constants(header, problem)
    block = [_evaluate(header, "block", one, names, 1, MAX_BLOCK) for one in header.expressions["block"]]
    block += [1] * (3 - len(block))
    if prod(block) > MAX_BLOCK:
        raise Unfit(
            f"{header.name}:{header.lines['block']}: block has {prod(block):,} threads, more than {MAX_BLOCK:,}"
        )
    shared = [_evaluate(header, "shared", one, names, 0, 1 << 20) for one in header.expressions.get("shared", ())]
    taken = header.words.get("arguments", ())
    defines = {name: value for name, value in problem_defines(problem).items() if name not in taken}
    launch = KernelLaunch(
        prod(block),
        partial(_evaluate_grid, header, names),
        scalars=tuple(names[name] for name in taken),
        shared_bytes=sum(shared),
        block=(block[0], block[1], block[2]),
    )
    return LaunchConfig(defines | {name: v for name, v in constants.items() if name not in taken}, (launch,))


def _evaluate_grid(header: Header, names: Mapping[str, int], images: int) -> Grid:
    """Return the grid (x, y, z) for a number of images. Raises UserError if a size is out of range."""
    found = [1, 1, 1]
    for at, expression in enumerate(header.expressions["grid"]):
        try:
            most = MAX_GRID_Y if at else MAX_GRID_X
            found[at] = _evaluate(header, "grid", expression, {**names, "images": images}, 1, most)
        except Unfit as unfit:
            raise UserError(f"{unfit} ({'xyz'[at]}, {images:,} images)") from None
    return found[0], found[1], found[2]


def _evaluate(header: Header, key: str, expression: ast.expr, names: Mapping[str, int], least: int, most: int) -> int:
    """Return an expression's value. key: of its header line. Raises Unfit if it is not from ``least`` to ``most``."""
    try:
        found = evaluate(expression, names)
    except BadExpressionError as error:
        raise Unfit(f"{header.name}:{header.lines[key]}: {key} {error}") from None
    if not least <= found <= most:
        raise Unfit(f"{header.name}:{header.lines[key]}: {key} is {found:,}, not {least} to {most:,}")
    return found


def default_parameters_like(header: Header, row: Variant, problem: Problem) -> dict[str, int]:
    """Return the default parameters of the registry's ``row``; the header's constants replace some. Raises Unfit."""
    constants, _ = evaluate_constants(header, problem)
    return row.defaults(problem) | {name: value for name, value in constants.items() if name in row.tunables}


def configure_like_variant(header: Header, row: Variant, problem: Problem, parameters: Parameters) -> LaunchConfig:
    """Return the registry's launch of ``row`` plus header constants that are not its parameters. Raises Unfit."""
    config = row.configure(problem, parameters)
    constants, _ = evaluate_constants(header, problem)
    return replace(config, defines={**config.defines, **{k: v for k, v in constants.items() if k not in row.tunables}})
