"""Test every reader on thousands of broken files: it returns a valid object or raises one line, in time."""

from pathlib import Path
from random import Random

import h5py
import numpy as np
import pytest

from app.base.errors import UserError
from app.files import hdf5_process
from tests.fuzz import harness
from tests.fuzz.__main__ import TARGETS
from tests.fuzz.harness import Target, run, verdict
from tests.fuzz.hdf5 import image
from tests.fuzz.mutate import lookup3, repaired

FINDS = sorted((Path(harness.__file__).parent / "finds").iterdir())
SEED = 1
SHORT = 16  # the short form runs one of so many cases


def test_there_are_enough_cases() -> None:
    assert sum(target.cases for target in TARGETS.values()) >= 20_000


@pytest.mark.parametrize("name", TARGETS)
def test_readers_on_broken_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_form: bool) -> None:
    monkeypatch.setattr(hdf5_process, "SECONDS", 1)
    target = TARGETS[name]
    finds = list(run(target, tmp_path, SEED, range(target.cases if long_form else -(-target.cases // SHORT))))
    assert not finds, "\n".join(map(str, finds[:5]))


@pytest.mark.parametrize("path", FINDS, ids=lambda path: path.name)
def test_files_that_once_failed(path: Path, tmp_path: Path) -> None:
    """A file's name begins with that of its reader: ``tuning.deep_nesting``."""
    case = tmp_path / "case"
    case.write_bytes(path.read_bytes())
    assert verdict(TARGETS[path.name.partition(".")[0]].make(tmp_path)[1], case) is None


@pytest.mark.parametrize("name", TARGETS)
def test_some_cases_are_read_and_some_are_refused(name: str, tmp_path: Path) -> None:
    """Otherwise the cases would test only the reader's first check."""
    generate, read = TARGETS[name].make(tmp_path)
    ends = set()
    for index in range(150):
        (tmp_path / "case").write_bytes(generate(Random(index)))
        try:
            ends.add(read(tmp_path / "case") is not False)
        except UserError:
            ends.add(False)
        if len(ends) == 2:
            break
    assert ends == {True, False}


def target_with_error(error: BaseException | None) -> Target:
    def read(path: Path) -> None:
        if error is not None and path.read_bytes() == b"7":
            raise error

    return Target("planted", 9, lambda folder: (lambda rng: b"%d" % rng.randrange(9), read))


def test_the_harness_finds_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (KeyError("x"), AssertionError(), UserError("two", "lines"), UserError(""), UserError("x" * 9999)):
        finds = list(run(target_with_error(error), tmp_path, 3, range(200)))
        assert finds and {find.content for find in finds} == {b"7"}
        again = list(run(target_with_error(error), tmp_path, 3, range(finds[0].index, finds[0].index + 1)))
        assert [find.content for find in again] == [b"7"], "a case does not depend on those before it"
    assert not list(run(target_with_error(UserError("one line")), tmp_path, 3, range(200)))
    monkeypatch.setattr(harness, "SECONDS", 0.05)
    assert "still running" in str(verdict(lambda path: [None for _ in iter(int, 1)], tmp_path))


def test_repaired_checksums_are_those_of_hdf5(tmp_path: Path) -> None:
    good = image({"fc1": np.ones((2, 3), np.float32)}, "latest")
    assert repaired(good) == good and good[44:48] == lookup3(good[:44]).to_bytes(4, "little")
    at = good.rindex(b"OHDR")
    broken = bytearray(good)
    broken[at + 20] ^= 1
    assert repaired(bytes(broken)) != bytes(broken) and good.count(b"OHDR") >= 2
    (tmp_path / "x.h5").write_bytes(good)
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["fc1"].shape == (2, 3)
