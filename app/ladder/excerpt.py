"""Extract the parts of a step's file that show its idea: the diff from the previous step, coloured by Pygments."""

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import Differ, SequenceMatcher
from functools import cache

from app.base.errors import UserError, pip_install_command
from app.base.frozen import Frozen
from app.cuda.compiler import KERNEL_DIR
from app.ladder.lessons import Step

LEAST, MOST = 8, 24
GAP = "…"
ALIKE = 0.6  # least similarity of a removed line and the line that replaces it


class Line(Frozen):
    """One line of a diff. change: ``+``, ``-`` or a space. html: the coloured text. number: line number in its file.

    A line whose change is ``GAP`` stands for omitted lines.
    """

    change: str
    text: str
    html: str
    number: int


@cache
def coloured_lines(source: str) -> Sequence[str]:
    """Return the lines of a CUDA file as coloured HTML. Raises UserError without Pygments."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import CudaLexer
    except ModuleNotFoundError:
        raise UserError(f"the pages need Pygments: {pip_install_command('docs')}") from None
    made: str = highlight(source, CudaLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return made.splitlines()


def diff_lines(old: str, new: str) -> list[Line]:
    """Return the lines of both files in the order of a diff, without the comments at their heads.

    A removed line comes directly before the similar line that replaces it.
    """
    left, right = iter(_body_lines(old)), iter(_body_lines(new))
    lines = []
    for found in Differ().compare([line.text for line in _body_lines(old)], [line.text for line in _body_lines(new)]):
        change = found[0]
        if change == "-":
            lines.append(replace(next(left), change="-"))
        elif change in " +":
            if change == " ":
                next(left)
            lines.append(replace(next(right), change=change))
    return lines


@cache
def _body_lines(source: str) -> list[Line]:
    """Return the non-empty lines of a file after the comment at its head."""
    texts = source.splitlines()
    head = next((at for at, line in enumerate(texts) if not line.startswith("//")), len(texts))
    lines = (Line(" ", *one) for one in zip(texts, coloured_lines(source), range(1, len(texts) + 1), strict=True))
    return [line for line in lines if line.number > head and line.text.strip()]


def code_lines(source: str) -> list[str]:
    """Return the lines of a file without comments and empty lines."""
    lines = (re.sub(r"\s*//.*", "", line).rstrip() for line in source.splitlines())
    return [line for line in lines if line]


def count_changed_lines(before: Sequence[str], after: Sequence[str]) -> int:
    """Return how many lines are added, removed or replaced; a replaced line counts once."""
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in blocks if kind != "equal")


def changed_line_count(step: Step) -> int | None:
    """Return how many lines of code a step changes; None for a step that continues none."""
    if step.since is None:
        return None
    return count_changed_lines(code_lines(step.since.source), code_lines(step.source))


def excerpt_lines(step: Step) -> list[Line]:
    """Return the parts that the lesson's ``excerpt`` names: of the diff, or of the file if the step continues none.

    Raises ValueError if no line contains one of its texts.
    """
    shown: list[Line] = []
    own = diff_lines(step.since.source if step.since else step.source, step.source)
    for start, until, *other in step.lesson.excerpt:
        lines = _body_lines((KERNEL_DIR / other[0]).read_text(encoding="utf-8")) if other else own
        if shown:
            where = f"in {other[0]}" if other else ""
            shown.append(Line(GAP, where, where, 0))
        shown += _part_lines(lines, start, until)
    return shown


def _part_lines(lines: Sequence[Line], start: str, until: str) -> Sequence[Line]:
    """Return the lines from the one with ``start`` to the next with ``until``, and lines that the first replaces."""

    def find(text: str, after: int) -> int:
        alone = not text.strip("} ")  # a closing brace: its indentation tells which block it ends
        places = (at for at in range(after, len(lines)) if lines[at].change != "-")
        held = (at for at in places if (text == lines[at].text if alone else text in lines[at].text))
        if (found := next(held, None)) is None:
            raise ValueError(f"no line has {text}")
        return found

    first = find(start, 0)
    last = find(until, first)
    before, now = lines[max(first - 1, 0)], lines[first]
    replaced = before.change == "-" and SequenceMatcher(None, before.text, now.text).ratio() > ALIKE
    return lines[first - replaced : last + 1]
