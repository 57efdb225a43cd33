"""Test ``learn``: each exercise is wrong as handed out and has a right solution, and the progress is stored."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from app.lab.checking.cases import Case
from app.lab.checking.user_cases import user_cases
from app.lab.user_kernel.row import open_user_kernel
from app.ladder.check import job
from app.ladder.exercises.course import HERE, Exercise, all_exercises
from tests.support.host_kernels import skip_without_compiler
from tests.support.schemas import mistakes

UNWRITTEN, WRONG = "nothing was written", "found -?[0-9.e-]+, expected"
# Exercise → regular expression of the first error that ``check`` finds in it as handed out.
VERDICTS = {
    "01_thread_index": f"image 0, output 0: {UNWRITTEN}",
    "02_tail": r"02_tail.cu:\d+: it (reads x|writes y)\[\d+\]",
    "03_rows_and_columns": WRONG,
    "04_barriers": "image 0, output 0: found NaN from shared memory that no thread had written",
    "05_halo": r"05_halo.cu:\d+: it reads byte 256 of shared memory: its block has 256",
    "06_register_tile": f"image 0, output 0: {UNWRITTEN}",
    "07_warp_sum": WRONG,
    "08_wide_loads": r"08_wide_loads.cu:\d+: .* misaligned address .* requires 16 byte alignment",
    "09_mma_tile": WRONG,
    "10_next_step": f"image 0, map 0, row 0, column 0: {UNWRITTEN}",
}
EACH = pytest.mark.parametrize("exercise", all_exercises(), ids=lambda exercise: exercise.name)
SOLVED = ("04_barriers", "__syncthreads();")


@pytest.fixture
def learner_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder and return its path; ``learn`` stores the progress elsewhere."""
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def fake_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace ``check`` of ``learn``: it accepts a file if this begins with "// right", and compiles nothing."""

    def check(request: Any) -> int:
        print("judged", request.file, request.device)
        return int(not request.file.read_text().startswith("// right"))

    monkeypatch.setattr("app.ladder.exercises.command.check", check)


def check_on_cpu(path: Path, folder: Path) -> Iterator[str | None]:
    """Yield the first error, or None, of a kernel file on two shapes; the file must also compile for a GPU."""
    skip_without_compiler()
    with open_user_kernel(path) as row:
        cases: list[Case] = user_cases(row, job.LIKE, np.random.default_rng(0))
        for case in cases:
            row.check_signatures(case.problem)
        assert not job._card_compiler_error(cases[0])
        for at, one in enumerate((cases[0], cases[-1])):
            yield job.check_case_on_cpu(one, folder / str(at), shared=True)


@EACH
def test_check_finds_the_error_in_the_unsolved_exercise(exercise: Exercise, tmp_path: Path) -> None:
    found = next(error for error in check_on_cpu(HERE / exercise.file_name, tmp_path) if error is not None)
    assert re.search(VERDICTS[exercise.name], found), found


@EACH
def test_check_accepts_the_stored_solution(exercise: Exercise, tmp_path: Path) -> None:
    assert [*check_on_cpu(exercise.solution, tmp_path)] == [None, None]
    assert exercise.find_missing_word(exercise.solution.read_text(encoding="utf-8")) is None


@EACH
def test_an_exercise_has_a_task_and_three_hints(exercise: Exercise) -> None:
    """Check the comment at the head of the file, which states the task, and the hints."""
    head = exercise.text.partition("//@")[0].splitlines()
    assert len(head) > 5 and all(line.startswith("//") for line in head) and re.fullmatch("[A-Z][^.]+", exercise.title)
    assert head[2] not in exercise.solution.read_text(encoding="utf-8")
    assert len(exercise.hints) == 3 == len(set(exercise.hints))
    assert all(hint.endswith((".", "?", ";")) and len(hint.split()) > 5 for hint in exercise.hints)


def test_exercise_files_are_those_of_exercises_toml() -> None:
    names = [exercise.file_name for exercise in all_exercises()]
    assert len(names) == 10 and names == sorted(names)
    assert [*VERDICTS] == [exercise.name for exercise in all_exercises()]
    for folder in (HERE, HERE / "solutions"):
        assert sorted(path.name for path in folder.glob("*.cu")) == names


def test_exercise_4_needs_both_barriers(tmp_path: Path) -> None:
    """Check that one barrier is not enough, and that the hint says how many threads write what a thread reads."""
    writers = {(3, k) for k in range(16)} | {(k, 5) for k in range(16)}
    assert f"that {len(writers) - 1} other threads have written" in all_exercises()[3].hints[1]
    text = (HERE / "solutions" / f"{SOLVED[0]}.cu").read_text(encoding="utf-8")
    before, middle, after = text.split(f"        {SOLVED[1]}\n")
    for at, half in enumerate((f"{before}{SOLVED[1]}{middle}{after}", f"{before}{middle}{SOLVED[1]}{after}")):
        (tmp_path / "half.cu").write_text(half)
        assert any(check_on_cpu(tmp_path / "half.cu", tmp_path / str(at)))


def test_learn_leads_through_all_exercises(
    learner_folder: Path, capsys: pytest.CaptureFixture[str], fake_check: None
) -> None:
    """Copy each exercise, check it, replace it by its solution, and check it again, until none is left."""
    for exercise in all_exercises():
        assert main(["learn", "next"]) == 0
        path = learner_folder / exercise.file_name
        assert path.read_text(encoding="utf-8") == exercise.text
        assert main(["learn", "check", "--device", "cpu"]) == 1
        path.write_text(f"// right\n{exercise.solution.read_text(encoding='utf-8')}")
        assert main(["learn", "check", "--device", "cpu"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert f"judged {exercise.file_name} cpu" in out and f"solved, {exercise.number} of 10" in out
        assert f"exercise {exercise.number} is not solved yet" in out
    assert main(["learn", "next"]) == 0 and main(["learn"]) == 0
    out = capsys.readouterr().out
    assert out.count("all exercises are solved") == 2 and len(re.findall(r"  solved  ", out)) == 10
    assert sorted(path.name for path in learner_folder.iterdir()) == [
        exercise.file_name for exercise in all_exercises()
    ]
    assert main(["learn", "check"]) == 2 and main(["learn", "check", "3", "--device", "cpu"]) == 0


def test_learn_check_runs_the_real_check(
    learner_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check a right kernel on two shapes: the JSON is that of ``check``, and the exercise is then solved."""
    skip_without_compiler()
    monkeypatch.setattr(job, "user_cases", lambda *asked: user_cases(*asked)[:2])
    assert main(["learn", "next"]) == 0
    path = learner_folder / all_exercises()[0].file_name
    path.write_text(path.read_text().replace("threadIdx.x + 1", "threadIdx.x"))
    capsys.readouterr()
    assert main(["learn", "check", "--device", "cpu", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert not mistakes(document) and {one["verdict"] for one in document["shapes"]} == {"right"}
    assert main(["learn", "--json", "-"]) == 0
    assert [one["solved"] for one in json.loads(capsys.readouterr().out)["exercises"]] == [True] + [False] * 9


def test_a_right_kernel_without_the_required_word_is_not_solved(
    learner_folder: Path, capsys: pytest.CaptureFixture[str], fake_check: None
) -> None:
    (learner_folder / "07_warp_sum.cu").write_text("// right, without __shfl_down_sync\n")
    assert main(["learn", "check", "warp_sum", "--device", "cpu"]) == 1
    assert "right, but the code has no __shfl_, which exercise 7 is about" in capsys.readouterr().out


def test_learn_next_keeps_an_existing_file(learner_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (learner_folder / "05_halo.cu").write_text("mine")
    assert main(["learn", "next", "5"]) == 0
    said = capsys.readouterr().out
    assert "05_halo.cu is here already and stays as it is" in said
    assert "python main.py learn check 5 judges it" in said  # without a number: the first unsolved one
    assert (learner_folder / "05_halo.cu").read_text() == "mine"


def test_hints_appear_one_by_one(learner_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exercise = all_exercises()[2]
    for shown in (1, 2, 3, 3):
        assert main(["learn", "hint", "03_rows_and_columns.cu", "--wide"]) == 0
        out = capsys.readouterr().out
        assert [f"{at}. {hint}" in out for at, hint in enumerate(exercise.hints, 1)] == [at < shown for at in range(3)]
        assert (str(exercise.solution) in out) == (shown == 3)
    assert main(["learn", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert not mistakes(document) and [one["hints_shown"] for one in document["exercises"]] == [0, 0, 3] + [0] * 7


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b'{"',
        b"[]",
        b'{"schema": "lenet5-inference/learn-progress/2", "solved": [], "hints": {}}',
        b'{"schema": "lenet5-inference/learn-progress/1", "solved": 1, "hints": {}}',
        b'{"schema": "lenet5-inference/learn-progress/1", "solved": [], "hints": {"02_tail": -1}}',
    ],
)
def test_damaged_progress_is_reported_in_one_line(
    content: bytes, learner_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = learner_folder.parent / "cache" / "learn" / "progress.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert main(["learn"]) == 0
    out, err = capsys.readouterr()
    assert "Which thread" in out and re.fullmatch(r"note: .*progress.json .*: going on as if no exercise .*\n", err)
    assert path.read_bytes() == content
    assert main(["learn", "hint"]) == 0
    capsys.readouterr()
    assert main(["learn"]) == 0 and capsys.readouterr().err == ""
