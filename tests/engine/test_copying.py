"""Test copying by several threads: all bytes, several callers, one core, after a fork, after an interrupt."""

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
    """Install new helper threads that copy small pieces, as on a machine with this many cores; return the number."""
    helpers = copying._HelperThreads()
    monkeypatch.setattr(copying, "core_count", lambda: request.param)
    monkeypatch.setattr(copying, "_helpers", helpers)
    monkeypatch.setattr(copying, "PIECE", 1000)
    yield request.param
    helpers.stop()


def random_rows(count: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(count, size), dtype=np.uint8)


def helper_count() -> int:
    return len(copying._helpers._threads)


def test_every_byte_is_copied_and_no_other(cores: int) -> None:
    for count, size in product((0, 1, 3, 999), (1, 7, 784, 4001)):
        source = random_rows(count, size)
        target = np.full((count + 2, size), 77, np.uint8)
        copy_by_threads(target[1:], source)
        np.testing.assert_array_equal(target[1:-1], source)
        assert (target[[0, -1]] == 77).all()
        assert helper_count() == min(cores - 1, 3)


@pytest.mark.parametrize("ends", [[100], [0, 100], [1, 99, 100], [45, 45, 100]])
def test_each_part_is_complete_when_its_bounds_are_yielded(ends: list[int], cores: int) -> None:
    source = random_rows(100, 784).astype(np.float32)
    target = np.zeros_like(source)
    found = []
    for start, stop in copy_in_parts(target, source, ends):
        np.testing.assert_array_equal(target[:stop], source[:stop])
        found.append((start, stop))
    assert found == [*pairwise((0, *ends))]


def test_several_callers_share_the_helpers(cores: int) -> None:
    def copy_repeatedly(seed: int) -> None:
        for turn in range(10):
            source = random_rows(50 + turn, 784, seed)
            target = np.zeros_like(source)
            copy_by_threads(target, source)
            np.testing.assert_array_equal(target, source)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(copy_repeatedly, range(12)))
    assert helper_count() == min(cores - 1, 3)


def test_helpers_copy_pieces_beside_the_caller(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two pieces waits until the other one is being copied, too, which takes two threads."""
    copy, together = ctypes.memmove, threading.Barrier(min(cores, 2), timeout=30)
    source = random_rows(2, copying.PIECE)
    target = np.zeros_like(source)

    def wait_then_copy(*arguments: Any) -> None:
        together.wait()
        copy(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(copying.ctypes, "memmove", wait_then_copy)
        copy_by_threads(target, source)
    np.testing.assert_array_equal(target, source)


class InterruptedCopy:
    """A ``memmove`` that raises SIGINT at the caller's second piece; helpers wait in it for ``go_on``."""

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
    first, second = random_rows(100, 784, 1), random_rows(100, 784, 2)
    target, other = np.zeros_like(first), np.zeros_like(first)
    with monkeypatch.context() as patch:
        caller = InterruptedCopy(patch)
        with pytest.raises(KeyboardInterrupt):
            copy_by_threads(target, first)
        caller.go_on.set()
    for _ in range(20):
        other[:] = 0
        copy_by_threads(other, second)
        np.testing.assert_array_equal(other, second)
    copying._helpers.stop()  # joins the helpers: none hangs
    assert np.count_nonzero(target) <= 4 * copying.PIECE, "the pieces that no thread had taken were dropped"


def test_an_exception_in_the_consuming_loop_ends_the_copy(cores: int) -> None:
    source = random_rows(100, 784)
    with pytest.raises(ZeroDivisionError):
        for start, _ in copy_in_parts(np.zeros_like(source), source, [10, 100]):
            1 // start
    target = np.zeros_like(source)
    copy_by_threads(target, source)
    np.testing.assert_array_equal(target, source)


def test_the_caller_copies_alone_if_no_thread_can_start(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    source = random_rows(100, 784)
    target = np.zeros_like(source)
    copy_by_threads(target, source)
    np.testing.assert_array_equal(target, source)
    assert helper_count() == 0


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
