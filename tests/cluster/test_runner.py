"""Test pieces of work on a cluster of two local processes, and on a running Dask cluster, usable or not."""

import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import dask
import numpy as np
import pytest
from distributed import Client, Worker

from app import VERSION
from app.base.errors import UserError
from app.base.processor import core_count
from app.cluster import plugin
from app.cluster.clusters import PREFIX, LocalWorker, scratch_folder
from app.cluster.runner import ClusterRunner, open_cluster_runner, open_local_runner
from tests.support.dask_processes import Cluster, dask_cluster
from tests.support.stand_in_engine import Answer, Piece, open_engine, open_nothing

WORKERS = [LocalWorker(f"cpu:{core}", {"STAND_IN": str(core)}, [core]) for core in sorted(os.sched_getaffinity(0))[:2]]


@pytest.fixture(scope="module")
def runner() -> Iterator[ClusterRunner]:
    # By default a piece may end four processes.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        open_local_runner(open_engine, WORKERS, estimate=lambda piece: piece.seconds) as one,
    ):
        yield one


def run_and_check(runner: ClusterRunner, pieces: list[Piece]) -> dict[int, Answer]:
    """Return number of piece → answer, after checking that each piece is answered once and rightly."""
    found = [(piece.number, answer) for piece, answer in runner.run(iter(pieces))]
    assert sorted(number for number, _ in found) == sorted(piece.number for piece in pieces)
    for number, answer in found:
        np.testing.assert_array_equal(answer.square, np.full(1000, number**2))
    return dict(found)


def test_every_worker_has_its_name_its_environment_and_its_cores(runner: ClusterRunner) -> None:
    found = run_and_check(runner, [Piece(number) for number in range(40)])
    assert {(one.name, one.variable, one.cores) for one in found.values()} == {
        (worker.name, worker.environment["STAND_IN"], frozenset(worker.cores)) for worker in WORKERS
    }
    assert len({one.pid for one in found.values()}) == min(2, core_count())


def test_small_pieces_share_a_task(runner: ClusterRunner) -> None:
    found = run_and_check(runner, [Piece(number, seconds=0.004) for number in range(10)])
    for task in ({0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}):
        assert len({found[number].pid for number in task}) == 1


def test_pieces_are_taken_as_there_is_room(runner: ClusterRunner) -> None:
    taken = []

    def record_taken() -> Iterator[Piece]:
        for number in range(1000):
            taken.append(number)
            yield Piece(number)

    for done, _ in enumerate(islice(runner.run(record_taken()), 50), 1):
        assert len(taken) < done + 3 * len(WORKERS) + 1
    assert len(taken) < 60


def test_a_piece_that_ends_every_worker_is_an_error(runner: ClusterRunner) -> None:
    with pytest.raises(UserError, match=r"^piece 3: 2 processes ended with it, in turn; does their memory suffice\?$"):
        list(runner.run([Piece(3, "SIGKILL")]))


def test_other_errors_of_an_engine_are_raised(runner: ClusterRunner) -> None:
    with pytest.raises(ValueError, match="a bug"):
        list(runner.run([Piece(1, "bug")]))


def test_an_engine_that_does_not_open_is_an_error_that_names_the_worker() -> None:
    with open_local_runner(open_nothing, WORKERS[:1]) as one, pytest.raises(UserError, match=r"^cpu:\d+: no GPU here$"):
        list(one.run([Piece(1)]))


def test_processes_that_do_not_start() -> None:
    reason = r"^cannot start 1 processes \(No module named 'no_such_module'\): use fewer$"
    with dask.config.set({"distributed.worker.preload": ["no_such_module"]}), pytest.raises(UserError, match=reason):
        open_local_runner(open_engine, WORKERS[:1]).__enter__()


def test_a_fault_of_this_machine_is_not_the_scheduler_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"^the work through Dask ends: .*No such file or directory: .*gone"):
        open_local_runner(open_engine, WORKERS[:1]).__enter__()


def test_a_check_may_end_the_wait() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_local_runner(open_engine, WORKERS[:1], check=interrupt):
        raise AssertionError("it takes longer to start")


# --- without a cluster


class CUDARuntimeError(Exception):
    """Stand-in for CuPy's exception, which is recognised by its name."""

    status = 700


@pytest.mark.parametrize("opens", [False, True])
def test_a_fatal_gpu_error_ends_the_process(opens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error occurs when the engine opens, or when it computes; no later CUDA call would succeed."""
    engine = Mock(return_value=Mock(side_effect=CUDARuntimeError)) if opens else Mock(side_effect=CUDARuntimeError)
    opened = SimpleNamespace(wait_for_engine=engine)
    monkeypatch.setattr(plugin, "get_worker", lambda: SimpleNamespace(plugins={"name": opened}))
    monkeypatch.setattr(plugin.os, "_exit", Mock(side_effect=SystemExit))
    with pytest.raises(SystemExit):
        plugin.answer_pieces("name", [1])
    plugin.os._exit.assert_called_once_with(plugin.GPU_LOST)  # type: ignore[attr-defined]


def test_folders_of_killed_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that are in use, new or named differently stay, and so do links and pipes."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, young, other, link = (tmp_path / name for name in (f"{PREFIX}left", f"{PREFIX}young", "other", f"{PREFIX}x"))
    for folder in (left, young, other):
        (folder / "dask-scratch-space").mkdir(parents=True)
    link.symlink_to(other)
    pipe = tmp_path / f"{PREFIX}pipe"  # another user's, maybe: to open it would wait for a writer
    os.mkfifo(pipe)
    with scratch_folder() as used:
        for path in (left, other, link, pipe, Path(used)):
            os.utime(path, (0, 0), follow_symlinks=False)
        with scratch_folder() as mine:
            assert {*tmp_path.iterdir()} == {young, other, link, pipe, Path(used), Path(mine)}
    assert {*tmp_path.iterdir()} == {young, other, link, pipe} and [*other.iterdir()]


# --- a cluster that runs already


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a Dask scheduler. Each test starts its workers, and ends them."""
    with dask_cluster(tmp_path_factory.mktemp("dask")) as one:
        yield one


def run_squares(address: str, deed: str = "") -> list[int]:
    pieces = (Piece(number, deed) for number in range(20))
    with open_cluster_runner(open_engine, address) as running:
        found = {piece.number: int(answer.square[0]) for piece, answer in running.run(pieces)}
    return [found[number] for number in range(20)]


def call_on_workers(address: str, function: Callable[..., Any], *arguments: object) -> list[Any]:
    """Return what the function returns on each worker."""
    with Client(address, set_as_default=False) as client:
        return [*client.run(function, *arguments).values()]


def plugin_names(dask_worker: Worker) -> list[str]:
    return sorted(dask_worker.plugins)


def test_workers_must_have_this_version_of_this_package(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"^--scheduler {cluster.address} has no workers: start dask worker "):
        run_squares(cluster.address)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").touch()
    cluster.start_worker(tmp_path)
    for reason in (
        r"cannot load this program \(AttributeError: .*\): start it with PYTHONPATH naming this folder$",
        rf"has lenet5-inference 0\.0, this is {VERSION}: install the same everywhere$",
    ):
        with pytest.raises(UserError, match=rf"^worker tcp://127\.0\.0\.1:\d+ {reason}"):
            run_squares(cluster.address)
        call_on_workers(cluster.address, eval, "setattr(__import__('app'), 'VERSION', '0.0')")
    cluster.end_workers()


def test_a_running_cluster_answers_and_keeps_nothing_until_its_last_worker_ends(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """When the last worker ends, a note is printed, and the run fails if no other worker joins."""
    cluster.start_worker()
    before = call_on_workers(cluster.address, plugin_names)
    assert run_squares(cluster.address) == [number**2 for number in range(20)]
    assert call_on_workers(cluster.address, plugin_names) == before
    capfd.readouterr()
    request.getfixturevalue("short_waits")
    with pytest.raises(UserError, match=r"^all workers have ended, for \d+ s now: see why, "):
        run_squares(cluster.address, "SIGKILL")
    assert re.fullmatch(r"note: all workers have ended: waiting for \d s more\n", capfd.readouterr().err)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cluster.runner.COUNT_SECONDS", 0.05)
    monkeypatch.setattr("app.cluster.runner.SILENT_SECONDS", 0.2)
    monkeypatch.setattr("app.cluster.runner.EMPTY_SECONDS", 1.0)
    monkeypatch.setattr("app.cluster.clusters.CONNECT_SECONDS", 2.0)


def test_the_scheduler_is_stopped(
    cluster: Cluster, short_waits: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Expect an error that says so, first during a run, then before one."""

    def stop_scheduler_after_first() -> Iterator[Piece]:
        yield Piece(0)
        cluster.scheduler.send_signal(signal.SIGSTOP)
        monkeypatch.setattr("app.cluster.clusters.CONNECT_SECONDS", 0.2)
        yield from map(Piece, range(1, 20))

    cluster.start_worker()
    with (
        pytest.raises(UserError, match=r"^the scheduler does not answer, for \d+ s now: see why, "),
        open_cluster_runner(open_engine, cluster.address) as running,
    ):
        list(running.run(stop_scheduler_after_first()))
    assert re.fullmatch(r"note: the scheduler does not answer: waiting for \d s more\n", capfd.readouterr().err)
    with pytest.raises(UserError, match=r"does not answer in 0\.2 s: start dask scheduler there"):
        run_squares(cluster.address)
    cluster.scheduler.send_signal(signal.SIGCONT)
    cluster.end_workers()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("tcp://127.0.0.1:9", r"does not answer in 0\.2 s: start dask scheduler there, or leave --scheduler out$"),
        ("tls://127.0.0.1:9", r"needs a certificate: set Dask's distributed\.comm\.tls, as in docs/scale\.md$"),
        ("nonsense", r"is no address: give it as tcp://HOST:PORT$"),
        ("what://127.0.0.1:9", r"is no address: give it as tcp://HOST:PORT$"),
    ],
)
def test_addresses_without_a_scheduler(monkeypatch: pytest.MonkeyPatch, address: str, reason: str) -> None:
    monkeypatch.setattr("app.cluster.clusters.CONNECT_SECONDS", 0.2)
    with pytest.raises(UserError, match=f"^--scheduler {address} {reason}"):
        run_squares(address)
