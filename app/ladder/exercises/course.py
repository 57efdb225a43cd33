"""Read the exercises and the learner's progress.

Each exercise is a kernel's file beside this module, whose head states the task; exercises.toml has the order and hints.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypedDict

from app.base.errors import UserError, choices_hint, print_to_stderr
from app.base.frozen import Frozen
from app.files.cache import cache_dir, is_trusted, store_private
from app.files.reading import may_exist, read_json
from app.lab.user_kernel.source import blank_comments
from app.records.derive import check_for_type
from app.records.parts import Count

HERE = Path(__file__).parent
ANEW = "going on as if no exercise were solved; the next solved one or hint replaces the file"


class Stored(TypedDict):
    """The file of the progress. solved: names of exercises. hints: name → number of hints shown."""

    schema: Literal["lenet5-inference/learn-progress/1"]
    solved: list[str]
    hints: dict[str, Count]


class Exercise(Frozen):
    """One exercise. uses: what a solution must contain. hints: the last one nearly gives the solution."""

    number: int
    name: str
    uses: tuple[str, ...]
    hints: tuple[str, ...]

    @property
    def file_name(self) -> str:
        """Return the file's name, in the learner's folder and here."""
        return f"{self.name}.cu"

    @property
    def text(self) -> str:
        """Return the exercise's file: the task and the broken or empty kernel."""
        return (HERE / self.file_name).read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """Return the file's first line."""
        return self.text.partition("\n")[0].removeprefix("// ")

    @property
    def solution(self) -> Path:
        """Return the path of a right kernel."""
        return HERE / "solutions" / self.file_name

    def find_unused_word(self, text: str) -> str | None:
        """Return the first word of ``uses`` that the code of a learner's file lacks, or None. Raises UserError."""
        code = blank_comments(self.file_name, text)
        return next((word for word in self.uses if word not in code), None)


class Progress(Frozen):
    """What a learner has done. solved: names of exercises. hints: name → number of hints shown."""

    solved: Sequence[str] = ()
    hints: Mapping[str, int] = field(default_factory=dict)

    def hints_shown(self, exercise: Exercise) -> int:
        """Return how many of the exercise's hints were shown."""
        return min(self.hints.get(exercise.name, 0), len(exercise.hints))

    def with_solved(self, exercise: Exercise) -> "Progress":
        """Return the progress with the exercise among the solved ones."""
        return replace(self, solved=tuple(dict.fromkeys((*self.solved, exercise.name))))

    def with_another_hint(self, exercise: Exercise) -> "Progress":
        """Return the progress with one more hint shown, if there is another."""
        shown = min(self.hints_shown(exercise) + 1, len(exercise.hints))
        return replace(self, hints={**self.hints, exercise.name: shown})


@cache
def all_exercises() -> tuple[Exercise, ...]:
    """Return the exercises in their order."""
    entries = tomllib.loads((HERE / "exercises.toml").read_text(encoding="utf-8"))["exercise"]
    return tuple(
        Exercise(number, entry["name"], tuple(entry["uses"]), tuple(entry["hints"]))
        for number, entry in enumerate(entries, 1)
    )


def find_exercise(word: str) -> Exercise:
    """Return an exercise by number (``3``), name (``rows_and_columns``) or file. Raises UserError."""
    asked = word.removesuffix(".cu")
    for exercise in all_exercises():
        plain = re.sub(r"^\d+_", "", exercise.name)
        if asked in (exercise.name, plain) or (asked.isdecimal() and int(asked) == exercise.number):
            return exercise
    names = [exercise.name for exercise in all_exercises()]
    raise UserError(f"there is no exercise '{word[:60]}': name its number, or {choices_hint(word, names)}")


def progress_path() -> Path:
    """Return the path of the file with the learner's progress."""
    return cache_dir() / "learn" / "progress.json"


def read_progress() -> Progress:
    """Return the stored progress: none if the file is missing or damaged (with a note on standard error)."""
    path = progress_path()
    if not is_trusted(path) or not may_exist(path):
        return Progress()
    try:
        stored: Stored = read_json(path, check_for_type(Stored), ANEW)
    except UserError as error:
        print_to_stderr(f"note: {error}")
        return Progress()
    return Progress(tuple(stored["solved"]), stored["hints"])


def store_progress(progress: Progress) -> None:
    """Write the progress, atomically. Raises UserError."""
    document: Stored = {
        "schema": "lenet5-inference/learn-progress/1",
        "solved": [*progress.solved],
        "hints": dict(progress.hints),
    }
    store_private(progress_path(), json.dumps(document, indent=1) + "\n")
