"""``classify`` on two GPUs when something goes wrong, and when one of them is hidden."""

from pathlib import Path

import pytest

from app.cuda.cards import visible_cards
from tests.support.classify_runs import SHARDS, Run, check_notes, labels, write_shards

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if len(visible_cards()) < 2:
        pytest.skip("needs two GPUs")
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder)
    return folder


@pytest.fixture(scope="module")
def expected(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The labels that one GPU gives."""
    with Run(shards, tmp_path_factory.mktemp("one"), "--device", "cuda:0", *SHARDS) as run:
        code, _, err = run.end()
    assert (code, err) == (0, "")
    return labels(run.results)


@pytest.mark.parametrize("faults", [(), ("SIGKILL", "exit", "SIGSEGV"), ("sticky", "SIGSTOP")])
def test_workers_that_end_or_hang_change_no_byte(
    shards: Path, expected: dict[str, bytes], tmp_path: Path, faults: tuple[str, ...]
) -> None:
    with Run(shards, tmp_path, "--devices", "all", *SHARDS, faults=faults, variables={"READS": "2"}) as run:
        code, _, err = run.end()
    assert code == 0, err
    check_notes(err, faults, r"cuda:\d")
    assert labels(run.results) == expected and len(expected) == len(SHARDS)


def test_one_of_two_gpus_is_hidden(shards: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": visible_cards()[1].visible}
    with Run(shards, tmp_path, "--devices", "0,1", *SHARDS, variables=hidden) as run:
        code, out, err = run.end()
    assert (code, out) == (2, "")
    assert err == "error: --devices 0,1: no cuda:1, there is one GPU, cuda:0\n"
    with Run(shards, tmp_path, "--devices", "all", *SHARDS, variables=hidden) as run:
        assert run.end()[0] == 0
    assert labels(run.results) == expected
