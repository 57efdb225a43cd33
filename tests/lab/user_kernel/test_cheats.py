"""Test that kernels that cheat are caught, as files in cheats/, and that forty honest odd ones are accepted.

The processor tries each file on one small shape; on a card, ``check`` tries all shapes and ``bench`` times the file.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.kernels.problems import Problem
from app.lab.checking.cases import Case
from app.lab.user_kernel.row import open_user_kernel
from app.ladder.check.job import check_case_on_cpu
from tests.lab.user_kernel.odd_kernels import HONEST, PROBLEM
from tests.support.host_kernels import skip_without_compiler

CHEATS = Path(__file__).parent / "cheats"
AGAIN = "run again on other images and weights, image 0, map 0, row 0, column 0: found"
# File → what is said on the processor; None if only ``bench`` on a card can find out.
SAID: dict[str, str | None] = {
    "writes_nothing": "image 0, map 0, row 0, column 0: nothing was written",
    "copies_the_oracle": r"copies_the_oracle.cu:\d+: it reads y\[\d+\]: y has 1050 elements",
    "starts_another_stream": r"starts_another_stream.cu does not compile for the processor: .*:\d+: expected",
    "caches_results": AGAIN,
    "caches_weights": AGAIN,
    "counts_its_runs": AGAIN,
    "skips_when_written": AGAIN,
    "reads_beyond": r"reads_beyond.cu:\d+: it reads w\[\d+\]: w has 90 elements",
    "equal_images": "image 1, map 0, row 0, column 0: found",
    "repeated_images": None,
    "timed_shape": "image 0, map 0, row 0, column 0: found 0",
    "usual_numbers": "image 3, map 0, row 0, column 0: found 0",
    "half_the_outputs": "image 0, map 0, row 0, column 1: found",
    "forgets_a_channel": "image 0, map 0, row 0, column 0: found",
    "coarse_numbers": "image 0, map 0, row 0, column",
    "changes_its_input": r"changes_its_input.cu:\d+: it writes to x, which it may only read",
    "writes_behind": r"writes_behind.cu:\d+: it writes y\[1082\]: y has 1050 elements",
    "always_the_mean": "image 0, map 0, row 0, column 0: found 0",
    "ends_the_program": "it ends its program before all its blocks have run",
    "reads_a_file": r"reads_a_file.cu:\d+: #include \"/etc/passwd\" is refused",
}  # fmt: skip
# What a card cannot notice, or what is no trick there.
NOT_ON_A_CARD = ("reads_beyond", "ends_the_program")


def verdict(path: Path, problem: Problem, folder: Path) -> str | None:
    """The first error of a file on a small shape, run by the processor."""
    skip_without_compiler()
    try:
        with open_user_kernel(path) as row:
            reason = row.refusal_reason(problem, "sm_90a")
            assert reason is None, reason
            row.check_signatures(problem)
            return check_case_on_cpu(
                Case(row, problem, 5, 2 * int(np.random.default_rng().integers(99999))), folder, shared=True
            )
    except UserError as error:
        return str(error)


def test_every_cheat_has_a_verdict() -> None:
    assert {path.stem for path in CHEATS.glob("*.cu")} == {*SAID, "honest"}
    assert len(SAID) >= 12


@pytest.mark.parametrize("name", SAID)
def test_a_cheat_is_caught(name: str, tmp_path: Path) -> None:
    said, pattern = verdict(CHEATS / f"{name}.cu", PROBLEM, tmp_path / "built"), SAID[name]
    assert said is None if pattern is None else re.match(pattern, said or ""), said


def test_the_file_that_they_are_made_of_is_honest(tmp_path: Path) -> None:
    assert verdict(CHEATS / "honest.cu", PROBLEM, tmp_path / "built") is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*(name for name in SAID if name not in NOT_ON_A_CARD), "honest"])
def test_on_the_card(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both commands find out, but for one cheat that only the timed number of images shows."""
    expected = {"honest": 0, "reads_a_file": 2}.get(name, 1)
    path = str(CHEATS / f"{name}.cu")
    assert main(["check", path]) == (0 if name == "repeated_images" else expected)
    assert main(["bench", path, "--shape", "3,12,12,8,5,1", "--batch", "1000", "--only", "direct"]) == expected
    assert ("WRONG" in capsys.readouterr().out) == (expected == 1)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_odd_kernel_is_accepted(name: str, tmp_path: Path) -> None:
    text, problem = HONEST[name]
    (tmp_path / "odd.cu").write_text(text)
    assert verdict(tmp_path / "odd.cu", problem, tmp_path / "built") is None


def test_there_are_forty() -> None:
    assert len({text for text, _ in HONEST.values()}) >= 39 and len(HONEST) >= 40


@pytest.mark.gpu
@pytest.mark.parametrize("name", HONEST)
def test_it_is_accepted_on_the_card(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.cu"
    path.write_text(HONEST[name][0])
    assert main(["check", str(path)]) == 0, capsys.readouterr().out
