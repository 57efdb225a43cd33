"""List the steps of the ladder in order: a registry row, the step that it continues, and its lesson.

A lesson is ``steps/OPERATION/NAME.toml``: the text about a step, which the pages of ``ladder_steps`` and the sections
of docs/kernels.md show. It names other steps in backticks, never by number. Every number in it is a formula in braces,
which ``formulas.py`` computes. The idea itself is the first paragraph of the step's .cu file.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache, cached_property
from pathlib import Path

from app.base.frozen import Frozen
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

    title: the idea in a few words. change: what is new compared with the step that it continues and with the reports,
    and why. excerpt: the parts of the file that show the idea, each by texts in its first and its last line, and the
    name of an included file if the part is there. drawing: the ``kind`` of the drawing and formulas for its parameters.
    counts: formulas, see ``counting.py``. bound: what bounds the step now; bounded_by: the same as keys of
    ``counting.PARTS``. proof: how hardware counters show it; proven_by: these counters, as keys of
    ``counters.COUNTERS``. detail: more about the idea, if needed. differs: counter → why it differs from the count, if
    the general reasons of ``differing.py`` do not apply.
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
    def slug(self) -> str:
        """Return the name of the step's page without the suffix, unique over all ladders."""
        return f"{self.row.operation}-{self.row.name}"

    @property
    def file_page(self) -> str:
        """Return the name of the page with the step's whole file, without the suffix."""
        return f"file-{self.row.source.removesuffix('.cu')}"

    @property
    def title(self) -> str:
        """Return number and name: ``2 direct``."""
        return f"{self.row.step} {self.row.name}"

    @property
    def ladder(self) -> str:
        """Return the name of the step's ladder."""
        return LADDERS[self.row.operation]

    @property
    def dtype(self) -> str:
        """Return the arithmetic type that the page shows: float32 if the step has it, otherwise its first type."""
        return "float32" if "float32" in self.row.dtypes else self.row.dtypes[0]

    @cached_property
    def source(self) -> str:
        """Return the text of the step's .cu file."""
        return self.row.path.read_text(encoding="utf-8")

    @property
    def since(self) -> "Step | None":
        """Return the step that this one continues; None for a first step."""
        return find_step(self.row.operation, self.row.since)


@cache
def ladder_steps(operation: str) -> tuple[Step, ...]:
    """Return the steps of an operation that have lessons, in the order of the ladder."""
    return tuple(Step(row, read_lesson(row)) for row in registry.variants(operation) if lesson_path(row).is_file())


def all_steps() -> tuple[Step, ...]:
    """Return the steps of all ladders."""
    return tuple(step for operation in LADDERS for step in ladder_steps(operation))


def find_step(operation: str, name: str | None) -> Step | None:
    """Return a step by name; None if there is none."""
    return next((step for step in ladder_steps(operation) if step.row.name == name), None)


def lesson_path(row: Variant) -> Path:
    """Return the path of the TOML file with a row's lesson."""
    return LESSONS / row.operation / f"{row.technique}.toml"


def read_lesson(row: Variant) -> Lesson:
    """Return a row's lesson, read from its TOML file."""
    found = tomllib.loads(lesson_path(row).read_text(encoding="utf-8"))
    lists = {name: tuple(found[name]) for name in ("bounded_by", "proven_by")}
    return Lesson(**found | lists | {"exercise": Exercise(**found["exercise"])})
