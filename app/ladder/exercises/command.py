"""Run ``main.py learn``: hand out exercises, judge them by ``check``, and record the progress."""

from pathlib import Path

from app.base.errors import UserError
from app.commands.check import CheckRequest
from app.commands.learn import LearnRequest
from app.files.writing import replace_atomically
from app.lab.user_kernel.source import read_source
from app.ladder.check.job import check
from app.ladder.exercises.course import (
    Exercise,
    Progress,
    all_exercises,
    find_exercise,
    read_progress,
    shown_hint_count,
    store_another_hint,
    store_solved,
)
from app.records.kernels import Learn
from app.terminal.output import publish_report
from app.terminal.text import Column, paragraph, table

COLUMNS = [Column(""), Column("exercise", left=True), Column("state", left=True), Column("hints")]
ALL_SOLVED = "all exercises are solved; python main.py bench mine.cu shows where a kernel of yours stands"


def learn(request: LearnRequest) -> int:
    """List the exercises, or copy, judge or give a hint for one. Return 1 if its kernel is wrong, otherwise 0.

    Raises UserError.
    """
    progress = read_progress()
    unsolved = (one for one in all_exercises() if one.name not in progress["solved"])
    exercise = next(unsolved, None) if request.exercise is None else find_exercise(request.exercise)
    if request.action == "check":
        return _judge_solution(request, exercise, progress)
    lines = [ALL_SOLVED] if exercise is None else []
    if exercise is not None and request.action == "next":
        lines = _copy_exercise(exercise)
    elif exercise is not None and request.action == "hint":
        store_another_hint(progress, exercise)
        lines = _hint_lines(exercise, progress)
    elif exercise is not None:
        lines = [f"python main.py learn next copies exercise {exercise.number} to this folder"]
    publish_report(_build_document(request.action, exercise, progress, lines), as_text, request.output)
    return 0


def _copy_exercise(exercise: Exercise) -> list[str]:
    """Write the exercise's file to the current folder unless it exists; return lines of help. Raises UserError."""
    path, number = Path(exercise.file_name), exercise.number
    done = "is here already and stays as it is"
    if not path.exists():
        with replace_atomically(path, overwrite=False) as temporary:
            temporary.write_text(exercise.text, encoding="utf-8")
        done = "is written"
    return [
        f"exercise {number} of {len(all_exercises())}: {exercise.title}",
        f"{path} {done}; its first lines are the task",
        f"python main.py learn check {number} judges it, python main.py learn hint {number} shows a hint",
    ]


def _hint_lines(exercise: Exercise, progress: Progress) -> list[str]:
    """Return lines of text with the hints shown so far and the number of hints left."""
    shown = shown_hint_count(progress, exercise)
    left = len(exercise.hints) - shown
    end = f"{left} more" if left else f"no more; the solution: {exercise.solution}"
    hints = [f"{at}. {hint}" for at, hint in enumerate(exercise.hints[:shown], 1)]
    return [f"hints for exercise {exercise.number}: {exercise.title}", *hints, f"({end})"]


def _judge_solution(request: LearnRequest, exercise: Exercise | None, progress: Progress) -> int:
    """Check the exercise's file in the current folder; record it if it is right. Return 0 if so, otherwise 1."""
    if exercise is None:
        raise UserError(f"{ALL_SOLVED}; to check one again name it: python main.py learn check 1")
    path = Path(exercise.file_name)
    if not path.exists():
        remedy = f"python main.py learn next {exercise.number} copies it here, or change to the folder that has it"
        raise UserError(f"{path} is not in this folder: {remedy}")
    unused = exercise.find_missing_word(read_source(path))
    code = check(CheckRequest(file=path, device=request.device, output=request.output))
    if code == 0 and unused is None:
        store_solved(progress, exercise)
        count = sum(one.name in progress["solved"] for one in all_exercises())
        said = [
            f"exercise {exercise.number} is solved, {count} of {len(all_exercises())}",
            f"another solution: {exercise.solution}",
            ALL_SOLVED if count == len(all_exercises()) else "python main.py learn next copies the next exercise",
        ]
    elif code == 0:
        said = [f"right, but the code has no {unused}, which exercise {exercise.number} is about: not solved yet"]
    else:
        hint = f"python main.py learn hint {exercise.number} shows a hint"
        said = [f"exercise {exercise.number} is not solved yet; {hint}"]
    if request.output.json != "-":
        print("\n".join(["", *(line for text in said for line in paragraph(text))]))
    return int(code != 0 or unused is not None)


def _build_document(action: str, exercise: Exercise | None, progress: Progress, lines: list[str]) -> Learn:
    return {
        "schema": "lenet5-inference/learn/1",
        "exercises": [
            {
                "number": one.number,
                "name": one.name,
                "title": one.title,
                "solved": one.name in progress["solved"],
                "hints": len(one.hints),
                "hints_shown": shown_hint_count(progress, one),
            }
            for one in (all_exercises() if action == "list" else [exercise] if exercise else [])
        ],
        "text": lines,
    }


def as_text(document: Learn, width: int) -> str:
    """Return the document as text: a table of the exercises, if there are several, and the document's lines."""
    rows = [
        [str(one["number"]), one["title"], "solved" if one["solved"] else "", f"{one['hints_shown']} of {one['hints']}"]
        for one in document["exercises"]
    ]
    lines = [*table(COLUMNS, rows, width), ""] if len(rows) > 1 else []
    return "\n".join([*lines, *(line for text in document["text"] for line in paragraph(text, width))])
