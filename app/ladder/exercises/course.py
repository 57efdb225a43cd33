"""Read the exercises and the learner's progress.

Each exercise is a kernel's file beside this module, whose head states the task; exercises.toml has the order and hints.
"""

import json
import re
import tomllib
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


class Progress(TypedDict):
    """What a learner has done, as its file has it. solved: names of exercises. hints: name → number of hints shown."""

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
    try:
        if is_trusted(path) and may_exist(path):
            return read_json(path, check_for_type(Progress), ANEW)
    except UserError as error:
        print_to_stderr(f"note: {error}")
    return {"schema": "lenet5-inference/learn-progress/1", "solved": [], "hints": {}}


def hints_shown(progress: Progress, exercise: Exercise) -> int:
    """Return how many of the exercise's hints were shown."""
    return min(progress["hints"].get(exercise.name, 0), len(exercise.hints))


def store_solved(progress: Progress, exercise: Exercise) -> None:
    """Add the exercise to the solved ones, and write the file. Raises UserError."""
    progress["solved"] = [*dict.fromkeys((*progress["solved"], exercise.name))]
    _store_progress(progress)


def store_another_hint(progress: Progress, exercise: Exercise) -> None:
    """Count one more hint as shown, if there is another, and write the file. Raises UserError."""
    progress["hints"][exercise.name] = min(hints_shown(progress, exercise) + 1, len(exercise.hints))
    _store_progress(progress)


def _store_progress(progress: Progress) -> None:
    """Write the file, atomically."""
    store_private(progress_path(), json.dumps(progress, indent=1) + "\n")
