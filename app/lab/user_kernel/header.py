"""Read the header of a user's kernel: lines ``//@ key: value`` and ``//@ NAME = expression`` in its file.

| line | meaning |
| --- | --- |
| ``//@ kernel: conv`` | what it computes: conv, gemm or pool |
| ``//@ as: conv:direct`` | instead: signature, launch and constants of that row of the registry |
| ``//@ TILE = 16`` | a constant of the compilation, which later lines can use |
| ``//@ block: TILE, TILE`` | threads of a block along x, y and z |
| ``//@ grid: ceil_div(images * OH * OW, 256), M`` | blocks along x, y and z for a number of images |
| ``//@ shared: 4 * TILE * TILE`` | bytes of dynamic shared memory |
| ``//@ arguments: C, H, W`` | sizes that the function takes behind ``int images``; the others are constants |
| ``//@ types: fp32, fp16`` | number types, fp32 if none is named |
| ``//@ without: bias, padding`` | what it does not do |
| ``//@ instructions: mma`` | fma, hfma2, mma or wgmma: the peak to compare with |
| ``//@ entry: my_conv`` | the function, if the file has several |
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache

from app.base.errors import UserError, choices_hint
from app.base.frozen import Frozen
from app.base.precision import BY_DTYPE, BY_NAME
from app.cuda.compiler import INCLUDE_DIR
from app.lab.user_kernel.expressions import BadExpressionError, names_in_expression, parse_expressions

MARK = "//@"
KINDS = {"conv": "conv", "gemm": "gemm", "fc": "gemm", "pool": "pool"}
SIZES = {
    "conv": ("C", "H", "W", "M", "K", "S", "PADDING", "OH", "OW"),
    "gemm": ("DEPTH", "N"),
    "pool": ("CHANNELS", "H", "W", "WINDOW", "STRIDE", "PADDING", "PH", "PW"),
}
TYPE_BYTES = ("INPUT_BYTES", "WEIGHT_BYTES", "REAL_BYTES", "OUTPUT_BYTES")
FEATURES = {
    "conv": ("bias", "activation", "padding", "stride", "bytes"),
    "gemm": ("bias", "activation", "bytes"),
    "pool": ("mean", "max", "padding", "ceil"),
}
INSTRUCTIONS = ("fma", "hfma2", "mma", "wgmma")
KEYS = ("kernel", "as", "block", "grid", "shared", "arguments", "types", "without", "instructions", "entry")
LAUNCH_KEYS = ("kernel", "block", "grid", "shared", "arguments", "without")
RESERVED = {"images", "INPUT", "WEIGHT", "REAL", "OUTPUT", "HAS_BIAS", "ACTIVATION", "IS_MAX", "COUNTED"}
_LINE = re.compile(rf"[ \t]*{MARK}(.*)")
_TEMPLATE = re.compile(r"template <([^{};()]*)>")
_KEY = re.compile(r"([\w-]+)[ \t]*(:|=(?!=))[ \t]*(.*)")
MAX_CONSTANTS = 64


class Header(Frozen):
    """A parsed header. expressions: of ``block``, ``grid``, ``shared``. words: of other keys. lines: line numbers."""

    name: str  # of the file
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    expressions: Mapping[str, tuple[ast.expr, ...]] = field(default_factory=dict)
    constants: Mapping[str, ast.expr] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def single_word(self, key: str) -> str | None:
        """Return the only value of a key; None if the header lacks the key."""
        return self.words[key][0] if key in self.words else None


def read_header(name: str, text: str, like: str | None) -> Header:
    """Parse the header in a file's text. like: the registry row of ``--as``. Raises UserError with the faulty line."""
    words: dict[str, tuple[str, ...]] = {}
    expressions: dict[str, tuple[ast.expr, ...]] = {}
    constants: dict[str, ast.expr] = {}
    lines: dict[str, int] = {}
    for at, line in enumerate(text.splitlines(), 1):
        marked = _LINE.fullmatch(line)
        if marked is None:
            continue
        content = marked[1].partition("//")[0].strip()
        found = _KEY.fullmatch(content)
        if found is None:
            raise UserError(f"{name}:{at}: '{content[:60]}' is neither '{MARK} key: value' nor '{MARK} NAME = value'")
        key, sign, value = found.groups()
        if key in lines:
            raise UserError(f"{name}:{at}: {key} stands in line {lines[key]}, too: give it once")
        if sign == ":" and key not in KEYS:
            raise UserError(f"{name}:{at}: unknown key '{key[:40]}': {choices_hint(key, KEYS)}")
        lines[key] = at
        try:
            if sign == "=":
                (constants[key],) = _parse_constant(key, value, len(constants))
            elif key in ("block", "grid", "shared"):
                expressions[key] = parse_expressions(value)
            else:
                words[key] = tuple(word.strip() for word in value.split(","))
        except BadExpressionError as error:
            raise UserError(f"{name}:{at}: {key} {error}") from None
    if like is not None:
        words["as"] = (like,)
    header = Header(name, words, expressions, constants, lines)
    _check_keys(name, header)
    return header


def _parse_constant(name: str, value: str, count: int) -> tuple[ast.expr]:
    """Return a constant's expression, parsed. count: number of constants before it. Raises BadExpressionError."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]{0,39}", name):
        raise BadExpressionError("is no name of a constant: use capitals, digits and _")
    if name in RESERVED | _template_parameter_names() or any(name in sizes for sizes in (*SIZES.values(), TYPE_BYTES)):
        raise BadExpressionError("is taken by a size, a type or the kernels' headers: choose another name")
    if count >= MAX_CONSTANTS:
        raise BadExpressionError(f"is one constant too many: at most {MAX_CONSTANTS} fit in a header")
    found = parse_expressions(value)
    if len(found) != 1:
        raise BadExpressionError("is a constant: give it one value")
    return (found[0],)


@cache
def _template_parameter_names() -> set[str]:
    """Return names that a constant may not have: the template parameters in the kernels' include files."""
    texts = (path.read_text(encoding="utf-8") for path in INCLUDE_DIR.glob("*.cuh"))
    return {name for text in texts for line in _TEMPLATE.findall(text) for name in re.findall(r"\w+", line)}


def _check_keys(name: str, header: Header) -> None:
    """Raise UserError for keys that are missing, contradict each other or have unknown values."""

    def refuse(key: str, what: str) -> None:
        raise UserError(f"{name}:{header.lines.get(key, 1)}: {what}")

    words = header.words
    if "as" not in words and "kernel" not in words:
        raise UserError(
            f"{name} does not say what it computes: begin it with '{MARK} kernel: conv' (or gemm, pool), or with "
            f"'{MARK} as: conv:direct'; main.py check --init new.cu --as direct writes an example"
        )
    for key, values in words.items():
        if not all(values) or (len(values) != 1 and key in ("kernel", "as", "instructions", "entry")):
            refuse(key, f"{key} needs {'one value' if len(values) != 1 else 'a value'}")
    if "as" in words:
        both = [key for key in LAUNCH_KEYS if key in header.lines]
        if both:
            refuse(both[0], f"{both[0]} and as: the named row has its own launch; leave one of both out")
        return
    kind = words["kernel"][0]
    if kind not in KINDS:
        refuse("kernel", f"kernel: unknown operation '{kind[:40]}': {choices_hint(kind, KINDS)}")
    operation = KINDS[kind]
    for key in ("block", "grid"):
        if key not in header.expressions:
            refuse("kernel", f"there is no line '{MARK} {key}: …': it gives the launch")
    for key, parts in header.expressions.items():
        if len(parts) > (1 if key == "shared" else 3):
            refuse(key, f"{key} has {len(parts)} values, more than {1 if key == 'shared' else 3}")
    known = {"arguments": SIZES[operation], "without": FEATURES[operation], "instructions": INSTRUCTIONS}
    for key, choices in known.items():
        for word in words.get(key, ()):
            if word not in choices and not (key == "arguments" and word in header.constants):
                refuse(key, f"{key}: unknown '{word[:40]}': {choices_hint(word, choices)}")
    for word in words.get("types", ()):
        if word not in BY_NAME and word not in BY_DTYPE:
            refuse("types", f"types: unknown '{word[:40]}': {choices_hint(word, BY_NAME)}")


def check_names(name: str, header: Header, operation: str) -> None:
    """Raise UserError if an expression has a name that is neither a size of the operation nor an earlier constant."""
    sizes = {*SIZES[operation], *TYPE_BYTES}
    constants = [(key, (value,)) for key, value in header.constants.items()]
    for key, parts in [*constants, *header.expressions.items()]:
        known = sizes | {"images"} if key == "grid" else sizes
        if unknown := sorted(set().union(*map(names_in_expression, parts)) - known):
            hint = choices_hint(unknown[0], sorted(known))
            raise UserError(f"{name}:{header.lines[key]}: {key}: unknown name '{unknown[0][:40]}': {hint}")
        if key in header.constants:
            sizes.add(key)
