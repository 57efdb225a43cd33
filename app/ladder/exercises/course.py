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
from app.files.cache import cache_dir, is_trusted, write_private_file
from app.files.reading import may_exist, read_json
from app.lab.user_kernel.source import blank_comments
from app.records.derive import check_for_type
from app.records.parts import Count

HERE = Path(__file__).parent
DAMAGED_REMEDY = "going on as if no exercise were solved; the next solved one or hint replaces the file"


class Progress(TypedDict):
    """The stored progress of a learner. solved: names of exercises. hints: exercise → number of hints shown."""

    schema: Literal["lenet5-inference/learn-progress/1"]
    solved: list[str]
    hints: dict[str, Count]


class Exercise(Frozen):
    """An exercise. uses: words that a solution's code must contain. hints: the last one nearly gives the solution."""

    number: int
    name: str
    uses: tuple[str, ...]
    hints: tuple[str, ...]

    @property
    def file_name(self) -> str:
        """Return the name of the exercise's file, in the learner's folder and in this package."""
        return f"{self.name}.cu"

    @property
    def text(self) -> str:
        """Return the text of the exercise's file: the task and the broken or empty kernel."""
        return (HERE / self.file_name).read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """Return the title, which is the first line of the exercise's file."""
        return self.text.partition("\n")[0].removeprefix("// ")

    @property
    def solution(self) -> Path:
        """Return the path of a file with a right kernel for this exercise."""
        return HERE / "solutions" / self.file_name

    def find_missing_word(self, text: str) -> str | None:
        """Return the first word of ``uses`` that the code of a learner's file lacks, or None. Raises UserError."""
        code = blank_comments(self.file_name, text)
        return next((word for word in self.uses if word not in code), None)


@cache
def all_exercises() -> tuple[Exercise, ...]:
    """Return the exercises in order."""
    entries = tomllib.loads((HERE / "exercises.toml").read_text(encoding="utf-8"))["exercise"]
    return tuple(
        Exercise(number, entry["name"], tuple(entry["uses"]), tuple(entry["hints"]))
        for number, entry in enumerate(entries, 1)
    )


def find_exercise(word: str) -> Exercise:
    """Return an exercise by number (``3``), name (``rows_and_columns``) or file. Raises UserError."""
    wanted = word.removesuffix(".cu")
    for exercise in all_exercises():
        plain = re.sub(r"^\d+_", "", exercise.name)
        if wanted in (exercise.name, plain) or (wanted.isdecimal() and int(wanted) == exercise.number):
            return exercise
    names = [exercise.name for exercise in all_exercises()]
    raise UserError(f"there is no exercise '{word[:60]}': name its number, or {choices_hint(word, names)}")


def progress_path() -> Path:
    """Return the path of the file that stores the learner's progress."""
    return cache_dir() / "learn" / "progress.json"


def read_progress() -> Progress:
    """Return the stored progress; no progress if the file is missing or, with a note on stderr, damaged."""
    path = progress_path()
    try:
        if is_trusted(path) and may_exist(path):
            return read_json(path, check_for_type(Progress), DAMAGED_REMEDY)
    except UserError as error:
        print_to_stderr(f"note: {error}")
    return {"schema": "lenet5-inference/learn-progress/1", "solved": [], "hints": {}}


def shown_hint_count(progress: Progress, exercise: Exercise) -> int:
    """Return how many of the exercise's hints the learner has seen."""
    return min(progress["hints"].get(exercise.name, 0), len(exercise.hints))


def store_solved(progress: Progress, exercise: Exercise) -> None:
    """Add the exercise to the solved ones, and write the progress file. Raises UserError."""
    progress["solved"] = [*dict.fromkeys((*progress["solved"], exercise.name))]
    _store_progress(progress)


def store_another_hint(progress: Progress, exercise: Exercise) -> None:
    """Count one more hint as shown, if any is left, and write the progress file. Raises UserError."""
    progress["hints"][exercise.name] = min(shown_hint_count(progress, exercise) + 1, len(exercise.hints))
    _store_progress(progress)


def _store_progress(progress: Progress) -> None:
    """Write the progress file atomically."""
    write_private_file(progress_path(), json.dumps(progress, indent=1) + "\n")
