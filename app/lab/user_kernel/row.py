"""Make a ``Variant`` of a user's kernel: commands use it like a row of the registry, which does not list it."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from app.base.errors import UserError, choices_hint
from app.base.precision import BY_NAME, INTEGERS
from app.kernels import registry
from app.kernels.problems import Problem
from app.kernels.variant import Variant
from app.lab.user_kernel import launches
from app.lab.user_kernel.header import KINDS, SIZES, Header, check_names, read_header
from app.lab.user_kernel.source import blank_comments, contains_ptx, read_source

_BOUNDS = re.compile(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)")
_FUNCTION = re.compile(r"\b__global__\s+void\s+(\w+)\s*\(([^()]*)\)")
_NOT_AN_INT = re.compile(r"\b(?:long|short|char|float|double|half|__half|bool|size_t|u?int64_t|float\d\d|uint8)\b")
_MIN_ARCH = {"mma": 80, "wgmma": 90}


class UserVariant(Variant):
    """The row of a user's kernel. path: a checked copy of the file. name, source: the file's name.

    signatures: (function, declarations of its parameters) of each kernel in the file.
    """

    path: Path = Path()
    name: str = ""
    source: str = ""
    entry: str = ""
    signatures: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def check_signatures(self, problem: Problem) -> None:
        """Raise UserError if a function's parameters do not fit the arguments with which it is launched."""
        config = self.launch_config(problem)
        x, *others = problem.arguments()
        taken = config.packing.takes if config.packing else [one for one in others if not one.per_image]
        arrays = [x, *taken, *(one for one in others if one.per_image), *config.workspace]
        for launch in config.launches:
            entry = launch.entry or self.entry
            found = dict(self.signatures).get(entry)
            if found is None:
                known = ", ".join(dict(self.signatures)) or "none"
                raise UserError(f"{self.name} has no function {entry}, which is launched; its functions: {known}")
            if any("#" in one for one in found):
                continue  # the parameters depend on constants
            count = len(arrays) + 1 + len(launch.scalars)
            wanted = f"{', '.join(one.name for one in arrays)}, int images"
            wanted += f" and {len(launch.scalars)} sizes (int)" if launch.scalars else ""
            pointers = [("*" in one) for one in found]
            if pointers != [True] * len(arrays) + [False] * (count - len(arrays)):
                raise UserError(f"{self.name}: {entry} takes ({', '.join(found)}), but is launched with {wanted}")
            if bad := next((one for one in found[len(arrays) :] if _NOT_AN_INT.search(one)), None):
                raise UserError(f"{self.name}: {entry} takes '{bad}', but is launched with an int there")


@contextmanager
def open_user_kernel(path: Path, like: str | None = None) -> Iterator[UserVariant]:
    """Yield the row of the user's kernel in the file ``path``; its checked copy is removed when the block ends.

    like: the registry's row whose launch it uses, ``conv:direct`` or ``direct``. Raises UserError.
    """
    text = read_source(path)
    code = blank_comments(path.name, text)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        row = _make_user_variant(copy, text, code, read_header(path.name, text, like))
        copy.write_text(text, encoding="utf-8")
        yield row


def _make_user_variant(file: Path, text: str, code: str, header: Header) -> UserVariant:
    name, like = file.name, header.single_word("as")
    row = None if like is None else find_named_variant(like)
    operation = row.operation if row is not None else KINDS[header.words["kernel"][0]]
    check_names(name, header, operation)
    signatures = {
        found[1]: tuple(" ".join(one.split()) for one in found[2].split(",") if one.strip())
        for found in _FUNCTION.finditer(_BOUNDS.sub(" ", code))
    }
    function = _find_entry_point(name, text, [*signatures], header.single_word("entry"), row)
    told: dict[str, Any] = {
        "path": file,
        "entry": function,
        "has_ptx": contains_ptx(code),
        "signatures": tuple(signatures.items()),
    }
    told |= {"name": name, "source": name, "summary": name, "automatic": False, "taught": False}
    dtypes = tuple(BY_NAME[one].dtype if one in BY_NAME else one for one in header.words.get("types", ()))
    if row is not None:
        if other := [one for one in dtypes if one not in row.dtypes]:
            raise UserError(f"{name}: types: {row.name} has no {other[0]}: leave the line out")
        given = {one.name: getattr(row, one.name) for one in fields(row)} | told
        given |= {"since": row.name, "dtypes": dtypes or row.dtypes}
        given["defaults"] = partial(launches.default_parameters_like, header, row)
        given["configure"] = partial(launches.configure_like_variant, header, row)
        return UserVariant(**given)
    if INTEGERS in dtypes:
        raise UserError(f"{name}: types: no kernel of a single layer computes in {INTEGERS}: name another type")
    instructions = header.single_word("instructions") or "fma"
    return UserVariant(
        operation,
        0,
        file.stem,
        "a user's file",
        partial(launches.configure_from_header, header),
        dtypes or ("float32",),
        refuses=partial(launches.unsupported_feature_reason, header.words.get("without", ())),
        min_arch=_MIN_ARCH.get(instructions, 75),
        only_arch=90 if instructions == "wgmma" else None,
        instructions=instructions,
        **told,
    )


def find_named_variant(like: str) -> Variant:
    """Return the registry's row named as ``conv:direct``, or as ``direct`` in any operation. Raises UserError."""
    kind, _, technique = like.rpartition(":")
    if kind and kind not in KINDS:
        raise UserError(f"--as {like[:60]}: unknown operation '{kind[:40]}': {choices_hint(kind, KINDS)}")
    operations = [KINDS[kind]] if kind else [*SIZES]
    rows = {row.name: row for operation in reversed(operations) for row in registry.variants(operation)}
    if technique not in rows:
        raise UserError(f"--as {like[:60]}: unknown kernel '{technique[:40]}': {choices_hint(technique, rows)}")
    if rows[technique].needs_cublas:
        raise UserError(f"--as {like}: this row multiplies in a library: name one that has a kernel of its own")
    return rows[technique]


def _find_entry_point(name: str, text: str, functions: Sequence[str], wanted: str | None, row: Variant | None) -> str:
    """Return the function to launch: ``wanted``, else that of ``row``, else the only one. Raises UserError."""
    if not functions or 'extern "C"' not in text:
        raise UserError(f'{name} has no kernel: begin its function with extern "C" __global__ void')
    if wanted is not None and wanted not in functions:
        raise UserError(f"{name}: entry: there is no function '{wanted[:40]}': {choices_hint(wanted, functions)}")
    if wanted is None and row is not None and row.entry in functions:
        return row.entry
    if wanted is None and len(functions) > 1:
        raise UserError(f"{name} has {len(functions)} kernels: name one by '//@ entry: {functions[0]}'")
    return wanted or functions[0]
