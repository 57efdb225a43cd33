"""Test app/base: frozen classes, ends of processes and their exit codes, and how processes divide cores."""

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import pytest

from app.base.frozen import Frozen
from app.base.interrupts import SIGNALS
from app.base.processes import block_signals, describe_exit_code
from app.base.processor import core_count, core_numbers, divide_cores, format_cores


class Ours(Frozen):
    """Has fields of every kind."""

    name: str
    kind: ClassVar[str] = "a kind"
    numbers: tuple[int, ...] = (1, 2)
    remark: str = field(default="", compare=False)
    hidden: dict[str, int] = field(default_factory=dict, repr=False, compare=False)


class Older(Ours, kw_only=True):
    """Adds a keyword-only field."""

    age: int = 0


@dataclass(frozen=True)
class Theirs:
    """A dataclass with the fields of ``Ours``."""

    name: str
    kind: ClassVar[str] = "a kind"
    numbers: tuple[int, ...] = (1, 2)
    remark: str = field(default="", compare=False)
    hidden: dict[str, int] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class TheirOlder(Theirs):
    """A dataclass with the fields of ``Older``."""

    age: int = 0


PAIRS = pytest.mark.parametrize(("ours", "theirs"), [(Ours, Theirs), (Older, TheirOlder)])
GIVEN: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    (("a",), {}),
    ((), {"name": "a"}),
    (("a", (3,), "so"), {}),
    (("a",), {"remark": "so", "numbers": (3,)}),
)


@PAIRS
@pytest.mark.parametrize(("values", "named"), GIVEN)
def test_instances_equal_those_of_a_dataclass(
    ours: Any, theirs: Any, values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    one, other = ours(*values, **named), theirs(*values, **named)
    assert list(vars(one).items()) == list(vars(other).items())
    assert repr(one) == repr(other).replace("TheirOlder", "Older").replace("Theirs", "Ours")
    assert hash(one) == hash(other)
    assert replace(one, name="b") == ours(**{**vars(one), "name": "b"}) != one
    assert replace(one, remark="other") == one and one != other
    assert pickle.loads(pickle.dumps(one)) == one
    assert is_dataclass(one) and [field.name for field in fields(one)] == [field.name for field in fields(other)]


@PAIRS
@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), (("a",), {"name": "a"}), (("a", (), "", {}, 5), {}), (("a",), {"none": 1}), (("a",), {"kind": "b"})],
)
def test_wrong_values_are_refused(ours: Any, theirs: Any, values: tuple[Any, ...], named: dict[str, Any]) -> None:
    for kind in (ours, theirs):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_instances_cannot_be_changed() -> None:
    one = Ours("a")
    assert Ours("a").hidden is not one.hidden
    for change in (lambda: setattr(one, "name", "b"), lambda: setattr(one, "new", 1), lambda: delattr(one, "name")):
        with pytest.raises(FrozenInstanceError):
            change()


ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was ended by signal 9 (Killed), perhaps out of memory"),
        (-11, "was ended by signal 11 (Segmentation fault)"),
        (-40, "was ended by signal 40 (Real-time signal 6)"),
        (None, "ended in an unknown way"),
    ],
)
def test_exit_codes_are_described(code: int | None, words: str) -> None:
    assert describe_exit_code(code) == words


def test_child_processes_block_signals() -> None:
    with block_signals():
        process = get_context("spawn").Process(target=signal.pause, daemon=True)
        process.start()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(SIGNALS)
    blocked = Path(f"/proc/{process.pid}/status").read_text().partition("SigBlk:\t")[2].split()[0]
    process.kill()
    process.join()
    assert all(int(blocked, 16) >> (number - 1) & 1 for number in SIGNALS)


@pytest.mark.parametrize("before", [True, False], ids=["that ended before", "that ends after"])
def test_a_process_ends_with_its_parent(before: bool) -> None:
    """The parent ends before or after ``end_with_parent`` is called. A running child keeps standard output open."""
    child = (
        "import sys, time; from app.base.processes import end_with_parent\n"
        "if sys.argv[2] == 'True': sys.stdin.read()\n"  # to the parent's end
        "end_with_parent(int(sys.argv[1])); print('on', flush=True); time.sleep(60)"
    )
    parent = (
        "import os, subprocess, sys; from subprocess import PIPE\n"
        "again = [sys.executable, '-c', sys.argv[1], str(os.getpid()), sys.argv[2]]\n"
        "process = subprocess.Popen(again, stdin=PIPE); sys.stdin.readline(); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", parent, child, str(before)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        said = b"" if before else process.stdout.readline()
        process.stdin.close()
        assert (said + process.stdout.read(), process.wait(30)) == (b"" if before else b"on\n", -signal.SIGKILL)


def test_core_numbers_are_those_of_the_process() -> None:
    assert core_numbers() == sorted(os.sched_getaffinity(0)) and core_count() == len(core_numbers())


@pytest.mark.parametrize(
    ("count", "groups"), [(1, [[4, 5, 7, 9, 11]]), (2, [[4, 5], [7, 9, 11]]), (5, [[4], [5], [7], [9], [11]])]
)
def test_every_core_belongs_to_one_process(count: int, groups: list[list[int]]) -> None:
    assert divide_cores([4, 5, 7, 9, 11], count) == groups


def test_processes_share_cores_where_there_are_too_few() -> None:
    groups = divide_cores([4, 5], 5)
    assert len(groups) == 5 and {*map(len, groups)} == {1} and {group[0] for group in groups} == {4, 5}


@pytest.mark.parametrize(("cores", "text"), [([3], "3"), ([0, 1, 2, 3], "0-3"), ([8, 0, 1, 3], "0-1,3,8"), ([], "")])
def test_core_numbers_are_formatted_as_ranges(cores: list[int], text: str) -> None:
    assert format_cores(cores) == text
