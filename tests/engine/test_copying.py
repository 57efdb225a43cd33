"""Copies by several threads: every byte, for several callers, on one core, after a fork, after an interrupt."""

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from app.engine import copying
from app.engine.copying import copy_by_threads, copy_in_parts
from tests.support.shell import python


@pytest.fixture(params=[1, 2, 16])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Fresh helpers, on a machine of so many cores, that copy small pieces."""
    helpers = copying._HelperThreads()
    monkeypatch.setattr(copying, "core_count", lambda: request.param)
    monkeypatch.setattr(copying, "_helpers", helpers)
    monkeypatch.setattr(copying, "PIECE", 1000)
    yield request.param
    helpers.stop()


def rows(count: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(count, size), dtype=np.uint8)


def threads() -> int:
    return len(copying._helpers._threads)


def test_every_byte_is_copied_and_no_other(cores: int) -> None:
    for count, size in product((0, 1, 3, 999), (1, 7, 784, 4001)):
        source = rows(count, size)
        target = np.full((count + 2, size), 77, np.uint8)
        copy_by_threads(target[1:], source)
        np.testing.assert_array_equal(target[1:-1], source)
        assert (target[[0, -1]] == 77).all()
        assert threads() == min(cores - 1, 3)


@pytest.mark.parametrize("ends", [[100], [0, 100], [1, 99, 100], [45, 45, 100]])
def test_a_part_is_there_when_its_bounds_come(ends: list[int], cores: int) -> None:
    source = rows(100, 784).astype(np.float32)
    target = np.zeros_like(source)
    found = []
    for start, stop in copy_in_parts(target, source, ends):
        np.testing.assert_array_equal(target[:stop], source[:stop])
        found.append((start, stop))
    assert found == [*pairwise((0, *ends))]


def test_several_callers_share_the_helpers(cores: int) -> None:
    def work(seed: int) -> None:
        for turn in range(10):
            source = rows(50 + turn, 784, seed)
            target = np.zeros_like(source)
            copy_by_threads(target, source)
            np.testing.assert_array_equal(target, source)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(12)))
    assert threads() == min(cores - 1, 3)


def test_helpers_copy_pieces_beside_the_caller(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies that wait for each other end only in two threads."""
    copy, together = ctypes.memmove, threading.Barrier(min(cores, 2), timeout=30)
    source = rows(2, copying.PIECE)
    target = np.zeros_like(source)

    def meet(*arguments: Any) -> None:
        together.wait()
        copy(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(copying.ctypes, "memmove", meet)
        copy_by_threads(target, source)
    np.testing.assert_array_equal(target, source)


class Interrupted:
    """Helpers wait before they copy, and the caller's second piece is interrupted by Ctrl-C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.pieces = threading.Event(), 0
        self._copy = ctypes.memmove
        monkeypatch.setattr(copying.ctypes, "memmove", self)

    def __call__(self, *arguments: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.go_on.wait()
        else:
            self.pieces += 1
            if self.pieces == 2:
                signal.raise_signal(signal.SIGINT)
        self._copy(*arguments)


def test_an_interrupt_leaves_the_helpers_usable(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = rows(100, 784, 1), rows(100, 784, 2)
    target, other = np.zeros_like(first), np.zeros_like(first)
    with monkeypatch.context() as patch:
        caller = Interrupted(patch)
        with pytest.raises(KeyboardInterrupt):
            copy_by_threads(target, first)
        caller.go_on.set()
    for _ in range(20):
        other[:] = 0
        copy_by_threads(other, second)
        np.testing.assert_array_equal(other, second)
    copying._helpers.stop()  # all of them still answer
    assert np.count_nonzero(target) <= 4 * copying.PIECE, "the pieces that no thread had taken were dropped"


def test_an_error_of_the_one_who_takes_the_parts_ends_the_copy(cores: int) -> None:
    source = rows(100, 784)
    with pytest.raises(ZeroDivisionError):
        for start, _ in copy_in_parts(np.zeros_like(source), source, [10, 100]):
            1 // start
    target = np.zeros_like(source)
    copy_by_threads(target, source)
    np.testing.assert_array_equal(target, source)


def test_a_machine_without_more_threads_copies_by_the_caller(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    source = rows(100, 784)
    target = np.zeros_like(source)
    copy_by_threads(target, source)
    np.testing.assert_array_equal(target, source)
    assert threads() == 0


PROGRAM = """
import os, sys, threading
import numpy as np
from app.engine import copying
copying.core_count = lambda: 4
source = np.random.default_rng(0).integers(256, size=(5000, 784), dtype=np.uint8)
def works():
    target = np.zeros_like(source)
    copying.copy_by_threads(target, source)
    return (target == source).all() and threading.active_count() == 4
assert works()
child = os.fork()
if child == 0:
    os._exit(0 if works() else 1)
assert os.waitpid(child, 0)[1] == 0
assert works()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_starts_helpers_itself_and_the_program_ends() -> None:
    done = python(PROGRAM, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    assert (done.returncode, done.stderr) == (0, "")
