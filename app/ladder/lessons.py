"""List the steps of the ladder in order: a kernel, the step that it continues, and the lesson about it.

A lesson is ``steps/OPERATION/NAME.toml``: the text about a step, shown by the pages and by docs/kernels.md. It names
other steps in backticks, never by number. Its numbers are formulas in braces, which ``formulas.py`` computes. The first
paragraph of the step's .cu file describes the idea itself.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from difflib import Differ, SequenceMatcher
from functools import cache, cached_property
from pathlib import Path

from app.base.errors import UserError, pip_install_command
from app.base.frozen import Frozen
from app.cuda.compiler import KERNEL_DIR
from app.kernels import registry
from app.kernels.variant import Variant

LESSONS = Path(__file__).with_name("steps")
LADDERS = {"conv": "convolution", "gemm": "matrix product"}


class Exercise(Frozen):
    """A task, the command that checks it, and its answer, which the page hides until the reader opens it."""

    task: str
    command: str
    answer: str


class Lesson(Frozen):
    """The hand-written text about one step.

    title: the idea in a few words. change: what is new compared with the step that it continues and with older course
    reports, and why. excerpt: the parts of the file that show the idea; texts in the first and last line identify each
    part, and a third text names an included file if the part is there. drawing: the ``kind`` of the drawing, and
    formulas for its parameters. counts: formulas, see ``counting.py``. bound: what bounds the step now. bounded_by: the
    same as keys of ``counting.PARTS``. proof: how hardware counters show this. proven_by: these counters, as keys of
    ``counters.COUNTERS``. detail: more about the idea, if needed. differs: counter → why it differs from the count, if
    the general reasons in ``tables.py`` do not apply.
    """

    title: str
    change: str
    excerpt: Sequence[Sequence[str]]
    drawing: Mapping[str, str]
    counts: Mapping[str, str]
    bound: str
    bounded_by: tuple[str, ...]
    proof: str
    proven_by: tuple[str, ...]
    exercise: Exercise
    detail: str = ""
    differs: Mapping[str, str] = field(default_factory=dict)


class Step(Frozen):
    """One step of a ladder: the registry row of a kernel, and the lesson about it."""

    row: Variant
    lesson: Lesson

    @property
    def page_name(self) -> str:
        """Return the name of the step's page without suffix, which is unique over all ladders."""
        return f"{self.row.operation}-{self.row.name}"

    @property
    def source_page_name(self) -> str:
        """Return the name, without suffix, of the page that shows the step's whole file."""
        return f"file-{self.row.source.removesuffix('.cu')}"

    @property
    def title(self) -> str:
        """Return the step's number and name: ``2 direct``."""
        return f"{self.row.step} {self.row.name}"

    @property
    def ladder_name(self) -> str:
        """Return the name of the step's ladder: ``convolution`` or ``matrix product``."""
        return LADDERS[self.row.operation]

    @property
    def dtype(self) -> str:
        """Return the arithmetic type that the page shows: float32 if the step supports it, otherwise its first."""
        return "float32" if "float32" in self.row.dtypes else self.row.dtypes[0]

    @cached_property
    def source(self) -> str:
        """Return the text of the step's .cu file."""
        return self.row.path.read_text(encoding="utf-8")

    @property
    def since(self) -> "Step | None":
        """Return the earlier step on which this one builds; None for a first step."""
        return find_step(self.row.operation, self.row.since)


@cache
def ladder_steps(operation: str) -> tuple[Step, ...]:
    """Return the steps of an operation (``conv`` or ``gemm``) that have lessons, in reading order."""
    return tuple(Step(row, read_lesson(row)) for row in registry.variants(operation) if lesson_path(row).is_file())


def all_steps() -> tuple[Step, ...]:
    """Return the steps of both ladders: convolutions, then matrix products."""
    return tuple(step for operation in LADDERS for step in ladder_steps(operation))


def find_step(operation: str, name: str | None) -> Step | None:
    """Return the step of the operation (``conv`` or ``gemm``) with this name; None without one."""
    return next((step for step in ladder_steps(operation) if step.row.name == name), None)


def lesson_path(row: Variant) -> Path:
    """Return the path of the TOML file with the lesson about a kernel."""
    return LESSONS / row.operation / f"{row.technique}.toml"


def read_lesson(row: Variant) -> Lesson:
    """Read the lesson about a kernel from its TOML file and return it."""
    found = tomllib.loads(lesson_path(row).read_text(encoding="utf-8"))
    lists = {name: tuple(found[name]) for name in ("bounded_by", "proven_by")}
    return Lesson(**found | lists | {"exercise": Exercise(**found["exercise"])})


GAP = "…"
SIMILAR = 0.6  # least similarity of a removed line to the line that replaces it


class Line(Frozen):
    """A line of a diff. change: ``+``, ``-`` or space. html: the coloured text. number: of the line in its file.

    A line whose change is ``GAP`` stands for omitted lines.
    """

    change: str
    text: str
    html: str
    number: int


@cache
def highlight_lines(source: str) -> Sequence[str]:
    """Return the lines of a CUDA file as coloured HTML. Raises UserError without Pygments."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import CudaLexer
    except ModuleNotFoundError:
        raise UserError(f"the pages need Pygments: {pip_install_command('docs')}") from None
    made: str = highlight(source, CudaLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return made.splitlines()


@cache
def diff_lines(old: str, new: str) -> Sequence[Line]:
    """Return the diff from the text ``old`` to ``new``, CUDA files, without the comments at their heads.

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
    """Return the non-empty lines of a CUDA file after the comment at its head."""
    texts = source.splitlines()
    head = next((at for at, line in enumerate(texts) if not line.startswith("//")), len(texts))
    lines = (Line(" ", *one) for one in zip(texts, highlight_lines(source), range(1, len(texts) + 1), strict=True))
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
    """Return how many lines of code differ from the step that this one continues; None for a first step."""
    if step.since is None:
        return None
    return count_changed_lines(code_lines(step.since.source), code_lines(step.source))


def excerpt_lines(step: Step) -> list[Line]:
    """Return the lines that the lesson's ``excerpt`` names: of the diff, or of the file if it is a first step.

    Raises ValueError if a text of ``excerpt`` is in no line.
    """
    shown: list[Line] = []
    own = diff_lines(step.since.source if step.since else step.source, step.source)
    for start, until, *other in step.lesson.excerpt:
        lines = _body_lines((KERNEL_DIR / other[0]).read_text(encoding="utf-8")) if other else own
        if shown:
            where = f"in {other[0]}" if other else ""
            shown.append(Line(GAP, where, where, 0))
        shown += _lines_from_until(lines, start, until)
    return shown


def _lines_from_until(lines: Sequence[Line], start: str, until: str) -> Sequence[Line]:
    """Return the lines from that with ``start`` to that with ``until``, and the removed one that the first replaces."""

    def find_line(text: str, after: int) -> int:
        alone = not text.strip("} ")  # a closing brace: its indentation tells which block it closes
        places = (at for at in range(after, len(lines)) if lines[at].change != "-")
        held = (at for at in places if (text == lines[at].text if alone else text in lines[at].text))
        if (found := next(held, None)) is None:
            raise ValueError(f"no line has {text}")
        return found

    first = find_line(start, 0)
    last = find_line(until, first)
    before, now = lines[max(first - 1, 0)], lines[first]
    replaced = before.change == "-" and SequenceMatcher(None, before.text, now.text).ratio() > SIMILAR
    return lines[first - replaced : last + 1]
