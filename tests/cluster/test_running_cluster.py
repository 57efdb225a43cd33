"""Pieces through a cluster of Dask that runs already, and clusters that are of no use."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from app import VERSION
from app.base.errors import UserError
from app.cluster import remote, runner
from tests.support.dask_processes import dask_cluster
from tests.support.stand_in_engine import Piece, open_engine


def squares(address: str, deed: str = "") -> list[int]:
    pieces = (Piece(number, deed) for number in range(20))
    with runner.cluster_runner(open_engine, address) as cluster:
        found = {piece.number: int(answer.square[0]) for piece, answer in cluster.run(pieces)}
    return [found[number] for number in range(20)]


def plugins(address: str) -> list[list[str]]:
    with Client(address, set_as_default=False) as client:
        return [*client.run(lambda dask_worker: sorted(dask_worker.plugins)).values()]


def test_a_running_cluster_answers_and_keeps_nothing(tmp_path: Path) -> None:
    with dask_cluster(tmp_path) as cluster:
        with pytest.raises(UserError, match=rf"^--scheduler {cluster.address} has no workers: start dask worker "):
            squares(cluster.address)
        cluster.start_worker()
        before = plugins(cluster.address)
        assert squares(cluster.address) == [number**2 for number in range(20)]
        assert plugins(cluster.address) == before


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "COUNT_SECONDS", 0.05)
    monkeypatch.setattr(runner, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(runner, "EMPTY_SECONDS", 1.0)
    monkeypatch.setattr(remote, "CONNECT_SECONDS", 2.0)


def test_the_last_worker_ends(tmp_path: Path, impatient: None, capfd: pytest.CaptureFixture[str]) -> None:
    """The user is told at once, and the work ends when no other comes."""
    with dask_cluster(tmp_path) as cluster:
        cluster.start_worker()
        with pytest.raises(UserError, match=r"^all workers have ended, for \d+ s now: see why, "):
            squares(cluster.address, "SIGKILL")
    assert re.fullmatch(r"note: all workers have ended: waiting for \d s more\n", capfd.readouterr().err)


def test_the_scheduler_is_stopped(tmp_path: Path, impatient: None, capfd: pytest.CaptureFixture[str]) -> None:
    def pieces() -> Iterator[Piece]:
        yield Piece(0)
        cluster.scheduler.send_signal(signal.SIGSTOP)
        yield from map(Piece, range(1, 20))

    with dask_cluster(tmp_path) as cluster:
        cluster.start_worker()
        with (
            pytest.raises(UserError, match=r"^the scheduler does not answer, for \d+ s now: see why, "),
            runner.cluster_runner(open_engine, cluster.address) as running,
        ):
            list(running.run(pieces()))
    assert re.fullmatch(r"note: the scheduler does not answer: waiting for \d s more\n", capfd.readouterr().err)


def test_a_stopped_scheduler_is_not_waited_for(tmp_path: Path, impatient: None) -> None:
    with dask_cluster(tmp_path) as cluster:
        cluster.start_worker()
        cluster.scheduler.send_signal(signal.SIGSTOP)
        with pytest.raises(UserError, match=r"does not answer in 2 s: start dask scheduler there"):
            squares(cluster.address)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("VERSION = '0.0'", rf"has lenet5-inference 0\.0, this is {VERSION}: install the same everywhere$"),
        ("", r"cannot load this program \(AttributeError: .*\): start it with PYTHONPATH naming this folder$"),
    ],
)
def test_workers_must_have_this_version_of_this_package(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text(line, "utf-8")
    with dask_cluster(tmp_path) as cluster:
        cluster.start_worker(tmp_path)
        with pytest.raises(UserError, match=rf"^worker tcp://127\.0\.0\.1:\d+ {reason}"):
            squares(cluster.address)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("tcp://127.0.0.1:9", r"does not answer in 0\.2 s: start dask scheduler there, or leave --scheduler out$"),
        ("tls://127.0.0.1:9", r"needs a certificate: set Dask's distributed\.comm\.tls, as in docs/scale\.md$"),
        ("nonsense", r"is no address: give it as tcp://HOST:PORT$"),
        ("what://127.0.0.1:9", r"is no address: give it as tcp://HOST:PORT$"),
    ],
)
def test_where_no_scheduler_is(monkeypatch: pytest.MonkeyPatch, address: str, reason: str) -> None:
    monkeypatch.setattr(remote, "CONNECT_SECONDS", 0.2)
    with pytest.raises(UserError, match=f"^--scheduler {address} {reason}"):
        squares(address)
