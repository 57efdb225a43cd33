"""Parse and evaluate the arithmetic in the header of a user's kernel, without running it as Python code."""

import ast
import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import add, eq, floordiv, ge, gt, le, lt, mod, mul, ne, neg, sub

from app.kernels.variant import ceil_div

MAX_LENGTH = 200  # characters of an expression
MAX_VALUE = 2**62
MAX_POWER = 16
FUNCTIONS: dict[str, Callable[..., int]] = {"ceil_div": ceil_div, "min": min, "max": max}
OPERATORS: dict[type[ast.AST], Callable[..., int]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.Div: floordiv,  # as C divides whole numbers; // begins a comment
    ast.Mod: mod,
    ast.Pow: pow,
    ast.USub: neg,
    ast.Eq: eq,
    ast.NotEq: ne,
    ast.Lt: lt,
    ast.LtE: le,
    ast.Gt: gt,
    ast.GtE: ge,
}
KNOWN = "whole numbers, names, + - * / % **, comparisons, A if B else C, ceil_div(a, b), min and max"


class BadExpressionError(Exception):
    """An expression that is not arithmetic, or has no value; the text is the reason."""


def parse_expressions(text: str) -> tuple[ast.expr, ...]:
    """Return the comma-separated expressions of ``text``. Raises BadExpressionError."""
    if len(text) > MAX_LENGTH:
        raise BadExpressionError(f"has {len(text):,} characters, more than {MAX_LENGTH}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise BadExpressionError(f"is no arithmetic: it may have {KNOWN}") from None
    if not isinstance(body, ast.Call) or not isinstance(body.func, ast.Name) or body.keywords or not body.args:
        raise BadExpressionError(f"is no arithmetic: it may have {KNOWN}")
    for node in body.args:
        _check_is_arithmetic(node)
    return tuple(body.args)


def _check_is_arithmetic(node: ast.expr) -> None:
    """Raise BadExpressionError if the expression has anything but whole numbers, names and arithmetic."""
    match node:
        case ast.Constant(value=int() as value) if type(value) is int:
            parts: Sequence[ast.expr] = ()
        case ast.Name(id=name) if name not in FUNCTIONS:
            parts = ()
        case ast.IfExp():
            parts = (node.test, node.body, node.orelse)
        case _:
            _, parts = _operator_and_operands(node)
    for part in parts:
        _check_is_arithmetic(part)


def _operator_and_operands(node: ast.expr) -> tuple[Callable[..., int], Sequence[ast.expr]]:
    """Return a node's operator as a function, and its operands. Raises BadExpressionError for an unknown operator."""
    match node:
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            return OPERATORS[type(operator)], (left, right)
        case ast.UnaryOp(op=ast.USub() as operator):
            return OPERATORS[type(operator)], (node.operand,)
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in OPERATORS:
            return OPERATORS[type(operator)], (left, right)
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS and len(node.args) == 2:
            return FUNCTIONS[name], node.args
    raise BadExpressionError(f"has '{ast.unparse(node)[:40]}': it may have {KNOWN}")


def names_in_expression(node: ast.expr) -> set[str]:
    """Return the names of constants and sizes in an expression."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - FUNCTIONS.keys()


def evaluate(node: ast.expr, names: Mapping[str, int]) -> int:
    """Return the value of a parsed expression. names: name → value. Raises BadExpressionError."""
    match node:
        case ast.Constant(value=int() as found):
            pass
        case ast.Name(id=name):
            found = names[name]
        case ast.IfExp(test=test, body=body, orelse=other):
            found = evaluate(body if evaluate(test, names) else other, names)
        case _:
            operator, operands = _operator_and_operands(node)
            found = _apply_operator(operator, [evaluate(operand, names) for operand in operands])
    if abs(found) >= MAX_VALUE:
        raise BadExpressionError(f"'{ast.unparse(node)[:40]}' is too large")
    return found


def _apply_operator(operator: Callable[..., int], values: Sequence[int]) -> int:
    if values[-1] == 0 and operator in (floordiv, mod, ceil_div):
        raise BadExpressionError("divides by zero")
    if operator is pow and not 0 <= values[-1] <= MAX_POWER:
        raise BadExpressionError(f"has a power of {values[-1]}, not of 0 to {MAX_POWER}")
    return int(operator(*values))
