"""The part of a step's file that shows its idea: the diff to the step that it continues, coloured by Pygments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from app.errors import UserError
from app.lessons.steps import Step

LEAST, MOST = 8, 20
NEAR = 3  # equal lines shown between changes; more are left out


@dataclass(frozen=True)
class Line:
    """One line of a diff. change: ``+``, ``-`` or a space; html: the coloured text. number: in its own file, from 1."""

    change: str
    text: str
    html: str
    number: int


def coloured(source: str) -> list[str]:
    """Return the lines of a CUDA file as HTML. Raises UserError without Pygments."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import CudaLexer
    except ModuleNotFoundError:
        raise UserError("the pages need Pygments: pip install -e '.[docs]'") from None
    made: str = highlight(source, CudaLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return made.splitlines()


def diff(old: str, new: str) -> list[Line]:
    """Return the lines of both files in the order of a diff; comments at their tops are left out."""
    olds, news = old.splitlines(), new.splitlines()
    (first_old, first_new), (html_old, html_new) = map(_head, (olds, news)), map(coloured, (old, new))
    matcher = SequenceMatcher(_is_filler, olds[first_old:], news[first_new:], autojunk=False)
    lines = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            lines += [Line("-", olds[at], html_old[at], at + 1) for at in range(a + first_old, b + first_old)]
        change = " " if kind == "equal" else "+"
        lines += [Line(change, news[at], html_new[at], at + 1) for at in range(c + first_new, d + first_new)]
    return lines


def _is_filler(line: str) -> bool:
    """Whether a line is too common to tell where two files agree."""
    return len(line.strip()) < 4 or line.startswith("#pragma")


def code_lines(source: str) -> list[str]:
    """Return the lines of a file without comments and empty lines."""
    lines = (re.sub(r"\s*//.*", "", line).rstrip() for line in source.splitlines())
    return [line for line in lines if line]


def changed_lines(before: Sequence[str], after: Sequence[str]) -> int:
    """Return how many lines are added, removed or replaced; a replaced line counts once."""
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in blocks if kind != "equal")


def changed_by(step: Step) -> int | None:
    """Return how many lines of code the step changes; None for a step that continues none."""
    if step.since is None:
        return None
    return changed_lines(code_lines(step.since.source), code_lines(step.source))


def excerpt(step: Step) -> list[Line]:
    """Return 8 to 20 lines, from the lesson's ``excerpt``: of the diff, or of the file where it continues no step.

    Runs of equal lines are left out, and lines without text. Raises ValueError if the text is in no line.
    """
    lines = diff(step.since.source if step.since else step.source, step.source)
    lines = [line for line in lines if line.text.strip()]
    start = next((at for at, line in enumerate(lines) if step.lesson.excerpt in line.text and line.change != "-"), None)
    if start is None:
        raise ValueError(f"{step.row.source}: no line has {step.lesson.excerpt}")
    while start and lines[start - 1].change == "-":  # what the first line replaces
        start -= 1
    following = lines[start:]
    shown = following if step.since is None else [line for at, line in enumerate(following) if _near(following, at)]
    cut = len(shown) > MOST and shown[MOST].change != " "
    shown = shown[:MOST]
    while len(shown) > LEAST and step.since and (shown[-1].change == " " or (cut and shown[-1].change == "-")):
        shown.pop()  # and removed lines without those that replace them
    return shown


def _near(lines: Sequence[Line], at: int) -> bool:
    return any(line.change != " " for line in lines[max(at - NEAR, 0) : at + NEAR + 1])


def _head(lines: Sequence[str]) -> int:
    """Number of lines of the comment at the top."""
    return next((at for at, line in enumerate(lines) if not line.startswith("//")), len(lines))
