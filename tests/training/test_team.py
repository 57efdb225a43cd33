"""Test teams of threads, of processes with two GPUs, and with simulated NCCL: sums, shares and failures."""

import os
import re
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import Pipe, get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import h5py
import numpy as np
import pytest

from app.base.errors import UserError
from app.training import team
from app.training.team import SharedMemoryTeam, Team, member_share, shared_memory_bytes
from tests.support.training_for_tests import Train, begin, ended, wait_for, workers_of
from tests.training.test_train_command import CHECKPOINT, MLP


def run_team(size: int, member: Callable[[Team], Any]) -> list[Any]:
    """Run ``member`` in one thread per member of a team; return the results by rank."""
    memory = bytearray(shared_memory_bytes(size))
    pipes = [Pipe() for _ in range(size - 1)]
    links = [[ours for ours, _ in pipes], *([theirs] for _, theirs in pipes)]
    with ThreadPoolExecutor(size) as pool:
        teams = [SharedMemoryTeam(rank, size, links[rank], memory) for rank in range(size)]
        return [future.result(timeout=60) for future in [pool.submit(member, team) for team in teams]]


@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_in_the_order_of_ranks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All members get the same bits, for every type and size, also if arrays are summed in pieces."""
    monkeypatch.setattr(team, "SLOT_BYTES", 64)
    rng = np.random.default_rng(1)
    shapes = [(1,), (16,), (17,), (5, 13), (0,), (8, 2)]
    rounds: list[list[np.ndarray]] = [
        [(rng.standard_normal(shape) * 10.0 ** int(rng.integers(-3, 3))).astype(dtype) for _ in range(size)]
        for shape in shapes
        for dtype in (np.float32, np.float64)
    ]

    def member(own: Team) -> list[np.ndarray]:
        results = [arrays[own.rank].copy() for arrays in rounds]
        for array in results:
            own.all_reduce(array)
        return results

    for results in run_team(size, member):
        for arrays, result in zip(rounds, results, strict=True):
            expected = arrays[0].copy()
            for array in arrays[1:]:
                expected = expected + array
            assert result.dtype == expected.dtype and np.array_equal(result, expected)


def test_a_member_that_ended_is_detected() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises((EOFError, OSError)):
        SharedMemoryTeam(0, 2, [ours], bytearray(shared_memory_bytes(2))).all_reduce(np.zeros(3))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 256])
def test_shares_are_contiguous_and_even(count: int, size: int) -> None:
    items = np.random.default_rng(1).permutation(count)
    shares = [member_share(items, SimpleNamespace(rank=rank, size=size)) for rank in range(size)]
    assert np.array_equal(np.concatenate(shares), items)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


# --- simulated NCCL


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Replace CuPy's NCCL binding and device by a mock, which records all calls."""
    cuda = pytest.importorskip("cupy").cuda
    fake = Mock(NCCL_FLOAT32=7, NCCL_FLOAT64=8, NCCL_SUM=0, NcclError=type("NcclError", (RuntimeError,), {}))
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", fake)
    monkeypatch.setattr(cuda, "nccl", fake, raising=False)
    monkeypatch.setattr(cuda, "Device", fake.Device)
    monkeypatch.setattr(cuda, "get_current_stream", lambda: SimpleNamespace(ptr=99))
    monkeypatch.setattr(cuda.runtime, "getDeviceCount", lambda: 2)
    monkeypatch.setattr(cuda.runtime, "runtimeGetVersion", lambda: 12090)
    return fake


def fake_gpu_array(dtype: type) -> Any:
    return SimpleNamespace(data=SimpleNamespace(ptr=1234), size=77, dtype=np.dtype(dtype))


def test_nccl_sums_in_place_on_the_current_stream(binding: Mock) -> None:
    from app.training.gpu.nccl_team import check_nccl_gpus, create_nccl_id, join_nccl_team

    check_nccl_gpus(2)
    name = create_nccl_id()
    with join_nccl_team(1, 2, name) as own:
        assert (own.rank, own.size) == (1, 2)
        own.all_reduce(fake_gpu_array(np.float32))
        own.all_reduce(fake_gpu_array(np.float64))
    assert binding.mock_calls == [
        call.get_unique_id(),
        call.Device(1),
        call.Device().use(),
        call.NcclCommunicator(2, name, 1),
        call.NcclCommunicator().allReduce(1234, 1234, 77, 7, 0, 99),
        call.NcclCommunicator().allReduce(1234, 1234, 77, 8, 0, 99),
        call.NcclCommunicator().destroy(),
    ]


def test_every_error_aborts_the_communicator(binding: Mock) -> None:
    from app.training.gpu.nccl_team import join_nccl_team

    binding.NcclCommunicator().allReduce.side_effect = binding.NcclError("no memory")
    with (
        pytest.raises(UserError, match="NCCL reported no memory: set NCCL_DEBUG=WARN"),
        join_nccl_team(0, 2, b"id") as own,
    ):
        own.all_reduce(fake_gpu_array(np.float32))
    assert binding.mock_calls[-1] == call.NcclCommunicator().abort()
    with pytest.raises(KeyboardInterrupt), join_nccl_team(0, 2, b"id"):
        raise KeyboardInterrupt
    assert binding.mock_calls[-1] == call.NcclCommunicator().abort()


def test_too_few_gpus_and_missing_nccl_are_refused(binding: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.training.gpu.nccl_team import check_nccl_gpus

    with pytest.raises(
        UserError, match="3 workers need one GPU each, but there are 2 GPUs, cuda:0 to cuda:1: use fewer --workers"
    ):
        check_nccl_gpus(3)
    monkeypatch.setattr(binding, "available", False)
    with pytest.raises(UserError, match="needs NCCL, which does not load: pip install nvidia-nccl-cu12"):
        check_nccl_gpus(2)


# --- real NCCL, on machines with two GPUs


@pytest.fixture
def two_gpus() -> None:
    from app.training.gpu.nccl_team import check_nccl_gpus

    try:
        check_nccl_gpus(2)
    except UserError as error:
        pytest.skip(f"needs two GPUs and NCCL: {error}")


def sum_on_gpu(rank: int, name: Any) -> list[np.ndarray]:
    import cupy

    from app.training.gpu.nccl_team import join_nccl_team

    with join_nccl_team(rank, 2, name) as own, cupy.cuda.Stream(non_blocking=True) as stream:
        results = [cupy.asarray(array) for array in summands(rank)]
        for array in results:
            own.all_reduce(array)
        stream.synchronize()
        return [array.get(stream=stream) for array in results]


def summands(rank: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rank)
    return [rng.standard_normal(count).astype(dtype) for count in (1, 100_003) for dtype in (np.float32, np.float64)]


@pytest.mark.gpu
def test_two_gpus_sum(two_gpus: None) -> None:
    from app.training.gpu.nccl_team import create_nccl_id

    name = create_nccl_id()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        first, second = (future.result(60) for future in [pool.submit(sum_on_gpu, rank, name) for rank in (0, 1)])
    for a, b, mine, theirs in zip(summands(0), summands(1), first, second, strict=True):
        assert mine.dtype == a.dtype and np.array_equal(mine, a + b) and np.array_equal(theirs, a + b)


@pytest.mark.gpu
def test_two_gpus_train_like_one(two_gpus: None, train: Train, place: Path) -> None:
    options = [*MLP, "--device", "cuda", "--epochs", "3", "--out"]
    assert train(*options, "one.h5")[0] == 0
    for name in ("two.h5", "again.h5"):
        code, _, err = train(*options, name, "--workers", "2")
        assert (code, err) == (0, "")
    with h5py.File(place / "one.h5") as one, h5py.File(place / "two.h5") as two:
        for name, array in one.items():
            np.testing.assert_allclose(two[name][()], array[()], rtol=1e-3, atol=1e-4)
    assert (place / "two.h5").read_bytes() == (place / "again.h5").read_bytes()


@pytest.mark.gpu
def test_a_killed_worker_ends_the_training_on_gpus(two_gpus: None, place: Path) -> None:
    process = begin(place, "--device", "cuda")
    wait_for((place / CHECKPOINT).exists)
    (worker,) = workers_of(process)
    os.kill(worker, signal.SIGKILL)
    code, _, err = ended(process)
    assert code == 2 and re.fullmatch(r"error: worker 2 of 2 was ended by signal 9 [^\n]*\n", err), err
