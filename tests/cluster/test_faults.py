"""Test faults of ``classify`` on several processes, on the CPU or two GPUs: equal labels, or one error."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from app.base.processor import core_count
from app.cli import main
from app.cuda.cards import visible_cards
from tests.support.classify_runs import SHARDS, Run, check_notes, labels, write_shards
from tests.support.dask_processes import dask_cluster
from tests.support.shell import Refuses

ALONE = ["classify", "--device", "cpu", "--weights", "own.h5", "--out"]
SLOW = 0.01 * core_count()  # seconds that a read takes; all cores read at once


@pytest.fixture
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all GPUs: a CPU finishes shards one after another, a GPU all seven at the same moment."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder)
    return folder


@pytest.fixture(scope="module")
def one_process_labels(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of labels that one process writes."""
    results = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shards)
        assert main([*ALONE, str(results), *SHARDS]) == 0
    found = labels(results)
    assert len(found) == 7
    return found


def test_workers_that_end_or_hang_change_no_byte(
    shards: Path, one_process_labels: dict[str, bytes], tmp_path: Path
) -> None:
    faults = ("SIGKILL", "exit", "lost", "SIGSTOP")
    with Run(shards, tmp_path, "--workers", "2", *SHARDS, faults=faults, variables={"READS": "10"}) as run:
        code, _, err = run.end()
    assert code == 0, err
    check_notes(err, faults, r"cpu:\S+ \(\d\)")
    assert labels(run.results) == one_process_labels


@pytest.mark.usefixtures("without_gpus")
def test_the_scheduler_dies(
    shards: Path,
    one_process_labels: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Complete files stay; --resume adds the others, and one that was truncated since."""
    with dask_cluster(tmp_path) as cluster:
        cluster.start_worker(slow=SLOW)
        with Run(shards, tmp_path, "--scheduler", cluster.address, *SHARDS) as run:
            run.wait_until(lambda: len(labels(run.results)) >= 2)
            cluster.scheduler.kill()
            code, out, err = run.end()
    assert (code, out) == (2, "")
    assert err == "error: the scheduler is gone: start it and its workers again, then run this again with --resume\n"
    kept = labels(run.results)
    assert 2 <= len(kept) < 7 and kept.items() <= one_process_labels.items()
    with (run.results / "a.labels.npy").open("r+b") as file:
        file.truncate(5000)
    monkeypatch.chdir(shards)
    assert main([*ALONE, str(run.results), "--resume", "--json", "-", *SHARDS]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch("note: .*a.labels.npy.*\n", err)
    assert json.loads(out)["shards"]["kept"] == len(kept) - 1
    assert labels(run.results) == one_process_labels


@pytest.mark.usefixtures("without_gpus")
def test_two_runs_on_one_folder_and_an_interruption(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    """The second run is refused. Ctrl-C, which reaches all processes of a terminal, ends the first one."""
    with Run(shards, tmp_path, "--workers", "2", *SHARDS, slow=SLOW) as first:
        first.wait_until(lambda: labels(first.results))
        assert first.listening() == {"0100007F"}
        monkeypatch.chdir(shards)
        busy = f"process {first.process.pid} is classifying into {first.results}: "
        refuses([*ALONE, first.results, "--overwrite", *SHARDS], busy)
        os.killpg(first.process.pid, signal.SIGINT)
        begin = time.monotonic()
        code, out, err = first.end()
        assert time.monotonic() - begin < 10
    assert (code, out) == (2, "") and err.startswith("error: interrupted") and err.count("\n") == 1
    assert 1 <= len(labels(first.results)) < 7


@pytest.fixture(scope="module")
def one_gpu_labels(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of labels that one of two GPUs writes."""
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
    shards: Path, one_gpu_labels: dict[str, bytes], tmp_path: Path, faults: tuple[str, ...]
) -> None:
    with Run(shards, tmp_path, "--devices", "all", *SHARDS, faults=faults, variables={"READS": "2"}) as run:
        code, _, err = run.end()
    assert code == 0, err
    check_notes(err, faults, r"cuda:\d")
    assert labels(run.results) == one_gpu_labels and len(one_gpu_labels) == len(SHARDS)


@pytest.mark.gpu
@pytest.mark.alone
def test_cuda_visible_devices_hides_one_of_two_gpus(
    shards: Path, one_gpu_labels: dict[str, bytes], tmp_path: Path
) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": visible_cards()[1].visible}
    with Run(shards, tmp_path, "--devices", "0,1", *SHARDS, variables=hidden) as run:
        code, out, err = run.end()
    assert (code, out) == (2, "")
    assert err == "error: --devices 0,1: no cuda:1, there is one GPU, cuda:0\n"
    with Run(shards, tmp_path, "--devices", "all", *SHARDS, variables=hidden) as run:
        assert run.end()[0] == 0
    assert labels(run.results) == one_gpu_labels
