"""Read the file of a user's kernel, and refuse code with which a compiler would read other files.

``check --device cpu`` compiles the file by g++ and runs it. The checks here prevent tricks at compile time; they are no
sandbox for the program.
"""

import re
from pathlib import Path

from app.base.errors import UserError
from app.cuda.compiler import INCLUDE_DIR
from app.files.reading import read_file

MAX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*\.cu", re.ASCII)
_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|(?:u8|[uUL])?R"|"(?:[^"\\\n]|\\.)*"|\w'|'(?:[^'\\\n]|\\.)*'""", re.DOTALL | re.ASCII
)
_DIRECTIVE = re.compile(r"[ \t\f\v]*#[ \t\f\v]*(\w*)[ \t\f\v]*(.*)")
_DIRECTIVES = ("define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "error")
_PRAGMA = re.compile(r"unroll\b[\w \t()<>=?:+*/%!&|-]*|once")
# Each lets a compiler read a file, or passes text to an assembler that can.
_REFUSED = {
    r"\b_Pragma\b": "_Pragma",
    r"\b__has_\w+": "__has_include and its like",
    r"\b__attribute(?:__)?\b": "__attribute__",
    r"\[\[\s*(?:gnu|using)\b": "[[gnu::…]]",
    r"\bhost\s*::": "the namespace host, which is the emulation's",
    r"%:|\?\?[=/'()!<>-]": "a digraph or trigraph",
    r"##": "##, which builds names that cannot be checked",
}
_ASM = re.compile(r"\b(?:asm|__asm|__asm__)\b")


def check_file_name(path: Path) -> None:
    """Raise UserError unless the file's name ends in .cu and has only characters that need no escaping."""
    if not _NAME.fullmatch(path.name):
        raise UserError(f"{path}: name the file with letters, digits, '_', '.', '-' alone and the ending .cu: mine.cu")


def read_source(path: Path) -> str:
    """Read and check the text of a user's kernel. Raises UserError."""
    check_file_name(path)
    content = read_file(path, MAX_BYTES, "a kernel's file is smaller: take data and unused code out of it")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text in UTF-8 (byte {error.start:,}): save it as UTF-8") from None
    if bad := re.search(r"[^\S\n\t ]|[\x00-\x08\x0e-\x1f]", text):
        line = text[: bad.start()].count("\n") + 1
        raise UserError(f"{path.name}:{line}: has the character {bad[0]!r}: take it out")
    check_source(path.name, text)
    return text


def check_source(name: str, text: str) -> None:
    """Raise UserError if the text may include files other than the kernels' headers, or hides what it does."""
    if splice := re.search(r"\\[ \t]*\n", text):
        _raise_refusal(name, text, splice.start(), "a line that ends in \\: write it in one line")
    code = blank_comments(name, text)
    for pattern, what in _REFUSED.items():
        if found := re.search(pattern, code):
            _raise_refusal(name, text, found.start(), f"{what}: a kernel needs none, leave it out")
    for at, line in enumerate(code.splitlines(), 1):
        found = _DIRECTIVE.fullmatch(line)
        if found is not None:
            _check_directive(name, at, found[1], found[2].strip(), text.splitlines()[at - 1])


def _check_directive(name: str, line: int, word: str, rest: str, written: str) -> None:
    place = f"{name}:{line}"
    if word == "include":
        known = sorted(path.name for path in INCLUDE_DIR.glob("*.cuh"))
        wanted = re.fullmatch(r'\s*#\s*include\s*"([\w.]+)"\s*(?://.*)?', written)
        if wanted is None or wanted[1] not in known:
            raise UserError(
                f'{place}: {" ".join(written.split())[:80]} is refused: include "common.cuh" or another header of '
                "app/kernels/include alone"
            )
    elif word == "pragma":
        if not _PRAGMA.fullmatch(rest):
            raise UserError(f"{place}: #pragma {rest[:40]} is refused: only unroll and once are known")
    elif word and word not in _DIRECTIVES:
        raise UserError(f"{place}: #{word[:40]} is refused: leave it out")


def blank_comments(name: str, text: str) -> str:
    """Return the text with spaces in place of comments and quoted text; line breaks remain.

    Raises UserError for raw strings, digit separators, and comments without an end.
    """

    def blank(token: re.Match[str]) -> str:
        found = token[0]
        if found.endswith('R"'):
            _raise_refusal(name, text, token.start(), "a raw string: a kernel needs none, leave it out")
        if found[-1] == "'" != found[0]:
            _raise_refusal(name, text, token.start(), "a ' behind a letter or digit: write numbers without it")
        kept = '"' if found[0] == '"' else " "
        return kept + re.sub(r"[^\n]", " ", found[1:-1]) + kept if len(found) > 1 else found

    code = _TOKENS.sub(blank, text)
    if "/*" in code:
        _raise_refusal(name, text, code.index("/*"), "a comment that has no end: close it by */")
    return code


def contains_ptx(text: str) -> bool:
    """Return whether the text, from ``blank_comments``, contains inline PTX, which only a GPU can run."""
    return bool(_ASM.search(text))


def _raise_refusal(name: str, text: str, at: int, what: str) -> None:
    raise UserError(f"{name}:{text[:at].count(chr(10)) + 1}: has {what}")
