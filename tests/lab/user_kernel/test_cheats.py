"""Test that kernels that cheat are caught, and that honest odd ones are accepted.

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
from tests.lab.user_kernel import cheats
from tests.lab.user_kernel.cheats import CHEATS
from tests.lab.user_kernel.odd_kernels import HONEST, PROBLEM
from tests.support.host_kernels import skip_without_compiler

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


def written(folder: Path, source: str, name: str = "odd") -> Path:
    """Write a kernel's file and return its path."""
    path = folder / f"{name}.cu"
    path.write_text(source)
    return path


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_caught(name: str, tmp_path: Path) -> None:
    source, pattern = CHEATS[name]
    said = verdict(written(tmp_path, source, name), PROBLEM, tmp_path / "built")
    assert said is None if pattern is None else re.match(pattern, said or ""), said


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*(name for name in CHEATS if name not in NOT_ON_A_CARD), "honest"])
def test_on_the_card(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both commands find out, but for one cheat that only the timed number of images shows."""
    expected = {"honest": 0, "reads_a_file": 2}.get(name, 1)
    path = str(written(tmp_path, cheats.HONEST if name == "honest" else CHEATS[name].source, name))
    assert main(["check", path]) == (0 if name == "repeated_images" else expected)
    assert main(["bench", path, "--shape", "3,12,12,8,5,1", "--batch", "1000", "--only", "direct"]) == expected
    assert ("WRONG" in capsys.readouterr().out) == (expected == 1)


@pytest.mark.parametrize("name", [*HONEST, "the one that cheats are made of"])
def test_an_honest_odd_kernel_is_accepted(name: str, tmp_path: Path) -> None:
    text, problem = HONEST.get(name, (cheats.HONEST, PROBLEM))
    assert verdict(written(tmp_path, text), problem, tmp_path / "built") is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", HONEST)
def test_it_is_accepted_on_the_card(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(written(tmp_path, HONEST[name][0]))]) == 0, capsys.readouterr().out
