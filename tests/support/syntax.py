"""Walk over Python sources."""

import ast
from collections.abc import Iterator


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and every statement in it, at any depth: ``ast.walk`` visits each part of an expression, too."""
    yield node
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        children = getattr(node, name, ())
        for child in children if isinstance(children, list) else ():  # a lambda's body is an expression
            yield from statements(child)
