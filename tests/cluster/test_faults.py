"""``classify`` on several processes, of the CPU or two GPUs, if something goes wrong: the same labels, or one error."""

import gzip
import json
import os
import re
import resource
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.base.processor import core_count
from app.cli import main
from app.cuda.cards import visible_cards
from tests.support.classify_runs import SHARDS, Run, check_notes, labels, write_shards
from tests.support.dask_processes import dask_cluster
from tests.support.shell import INTERRUPTIBLE
from tests.support.worker_faults import watched

SLOW = 0.01 * core_count()  # seconds of a read: as many cores read at once


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of the test compute on the processor, block by block: a GPU has all seven shards at the same moment."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder)
    return folder


@pytest.fixture(scope="module")
def expected(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The labels that one process gives."""
    results = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shards)
        assert main(["classify", "--device", "cpu", "--weights", "own.h5", "--out", str(results), *SHARDS]) == 0
    found = labels(results)
    assert len(found) == 7
    return found


def test_each_process_does_one_deed_however_many_lanes_read(tmp_path: Path) -> None:
    """Else tests wait for faults that never happen: a GPU's lanes begin all reads at the same time."""
    (tmp_path / "0-exit").touch()
    read = watched(lambda *_: 0, tmp_path, reads=2, slow=0.02)
    with ThreadPoolExecutor(7) as pool:
        reads = [pool.submit(read, 0, [], 0) for _ in range(7)]
    assert sum(isinstance(one.exception(), SystemExit) for one in reads) == 1
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("faults", [("SIGKILL", "exit"), ("lost", "SIGSTOP")], ids="+".join)
def test_workers_that_end_or_hang_change_no_byte(
    faults: tuple[str, ...], shards: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """Two at a time: with four, all may meet the same images, which are then given up."""
    with Run(shards, tmp_path, "--workers", "2", *SHARDS, faults=faults) as run:
        code, _, err = run.end()
    assert code == 0, err
    check_notes(err, faults, r"cpu:\S+ \(\d\)")
    assert labels(run.results) == expected


def test_a_shard_that_is_corrupt_in_the_middle(shards: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    """It is named, the others are finished, and no process ends for it."""
    bad = tmp_path / "d.idx.gz"
    with gzip.open(bad, "wb") as file:
        file.write((shards / "d.idx").read_bytes())
    content = bytearray(bad.read_bytes())
    content[len(content) // 2] ^= 255
    bad.write_bytes(content)
    names = [str(bad) if name == "d.idx" else name for name in SHARDS]
    with Run(shards, tmp_path, "--workers", "2", *names) as run:
        code, _, err = run.end()
    first, last = err.splitlines()
    assert code == 2 and first.startswith("unreadable: ") and str(bad) in first
    assert re.fullmatch(rf"error: 1 of 7 shards cannot be read \({bad}\); the others have their labels", last)
    assert labels(run.results) == {name: content for name, content in expected.items() if name != "d"}


@pytest.mark.usefixtures("slowly")
def test_the_scheduler_dies(shards: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    """Whole files stay; --resume finishes, also where a file was cut off since."""
    with dask_cluster(tmp_path) as cluster:
        cluster.start_worker(slow=SLOW)
        with Run(shards, tmp_path, "--scheduler", cluster.address, *SHARDS) as run:
            run.wait_until(lambda: len(labels(run.results)) >= 2)
            cluster.scheduler.kill()
            code, out, err = run.end()
    assert (code, out) == (2, "")
    assert err == "error: the scheduler is gone: start it and its workers again, then run this again with --resume\n"
    kept = labels(run.results)
    assert 2 <= len(kept) < 7 and kept.items() <= expected.items()
    with (run.results / "a.labels.npy").open("r+b") as file:
        file.truncate(5000)
    with Run(shards, tmp_path, "--workers", "2", "--resume", "--json", "-", *SHARDS) as run:
        code, out, err = run.end()
    assert code == 0 and re.fullmatch("note: .*a.labels.npy.*\n", err)
    assert json.loads(out)["shards"]["kept"] == len(kept) - 1
    assert labels(run.results) == expected


def test_the_disk_is_full(shards: Path, tmp_path: Path) -> None:
    """A limit of the system's on every file that the command writes stands for the disk."""

    def limit() -> None:
        INTERRUPTIBLE()
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    with Run(shards, tmp_path, "--workers", "2", "--logits", *SHARDS, preexec_fn=limit) as run:
        code, out, err = run.end()
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: cannot write .*: File too large.*\n", err)
    assert not labels(run.results)


@pytest.mark.usefixtures("slowly")
def test_two_runs_on_one_folder_and_an_interruption(shards: Path, tmp_path: Path) -> None:
    """The second run is refused. Ctrl-C, which reaches all processes of a terminal, ends the first one."""
    with Run(shards, tmp_path, "--workers", "2", *SHARDS, slow=SLOW) as first:
        first.wait_until(lambda: labels(first.results))
        assert first.listening() == {"0100007F"}
        with Run(shards, tmp_path, "--device", "cpu", "--overwrite", *SHARDS) as second:
            out, err = second.process.communicate(timeout=60)
        assert (second.process.returncode, out) == (2, "")
        assert re.fullmatch(rf"error: process {first.process.pid} is classifying into {first.results}: .*\n", err)
        os.killpg(first.process.pid, signal.SIGINT)
        begin = time.monotonic()
        code, out, err = first.end()
        assert time.monotonic() - begin < 10
    assert (code, out) == (2, "") and err.startswith("error: interrupted") and err.count("\n") == 1
    assert 1 <= len(labels(first.results)) < 7


def test_no_gpu(shards: Path, tmp_path: Path) -> None:
    with Run(shards, tmp_path, "--devices", "0,1", *SHARDS, variables={"CUDA_VISIBLE_DEVICES": ""}) as run:
        code, out, err = run.end()
    assert (code, out) == (2, "") and re.fullmatch(r"error: --devices 0,1: .*\n", err)
    assert not run.results.exists()


@pytest.fixture(scope="module")
def by_a_gpu(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The labels that one of two GPUs gives."""
    if len(visible_cards()) < 2:
        pytest.skip("needs two GPUs")
    with Run(shards, tmp_path_factory.mktemp("one"), "--device", "cuda:0", *SHARDS) as run:
        code, _, err = run.end()
    assert (code, err) == (0, "")
    return labels(run.results)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("faults", [(), ("SIGKILL", "exit", "SIGSEGV"), ("sticky", "SIGSTOP")])
def test_workers_of_two_gpus_that_end_or_hang_change_no_byte(
    shards: Path, by_a_gpu: dict[str, bytes], tmp_path: Path, faults: tuple[str, ...]
) -> None:
    with Run(shards, tmp_path, "--devices", "all", *SHARDS, faults=faults, variables={"READS": "2"}) as run:
        code, _, err = run.end()
    assert code == 0, err
    check_notes(err, faults, r"cuda:\d")
    assert labels(run.results) == by_a_gpu and len(by_a_gpu) == len(SHARDS)


@pytest.mark.gpu
@pytest.mark.alone
def test_one_of_two_gpus_is_hidden(shards: Path, by_a_gpu: dict[str, bytes], tmp_path: Path) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": visible_cards()[1].visible}
    with Run(shards, tmp_path, "--devices", "0,1", *SHARDS, variables=hidden) as run:
        code, out, err = run.end()
    assert (code, out) == (2, "")
    assert err == "error: --devices 0,1: no cuda:1, there is one GPU, cuda:0\n"
    with Run(shards, tmp_path, "--devices", "all", *SHARDS, variables=hidden) as run:
        assert run.end()[0] == 0
    assert labels(run.results) == by_a_gpu
