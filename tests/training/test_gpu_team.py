"""``train --workers`` on two GPUs, where there are as many and NCCL."""

import os
import re
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from app.errors import UserError
from tests.support.training_for_tests import Train, begin, ended, wait_for, workers_of
from tests.training.test_train_command import CHECKPOINT, MLP


@pytest.fixture
def two_cards() -> None:
    from app.training.gpu.nccl_team import check_cards

    try:
        check_cards(2)
    except UserError as error:
        pytest.skip(f"needs two GPUs and NCCL: {error}")


def sum_on_card(rank: int, name: Any) -> list[np.ndarray]:
    import cupy

    from app.training.gpu.nccl_team import nccl_team

    with nccl_team(rank, 2, name) as own, cupy.cuda.Stream(non_blocking=True) as stream:
        results = [cupy.asarray(array) for array in summands(rank)]
        for array in results:
            own.add(array)
        stream.synchronize()
        return [array.get(stream=stream) for array in results]


def summands(rank: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rank)
    return [rng.standard_normal(count).astype(dtype) for count in (1, 100_003) for dtype in (np.float32, np.float64)]


@pytest.mark.gpu
def test_two_cards_add_up(two_cards: None) -> None:
    from app.training.gpu.nccl_team import unique_id

    name = unique_id()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        first, second = (future.result(60) for future in [pool.submit(sum_on_card, rank, name) for rank in (0, 1)])
    for a, b, mine, theirs in zip(summands(0), summands(1), first, second, strict=True):
        assert mine.dtype == a.dtype and np.array_equal(mine, a + b) and np.array_equal(theirs, a + b)


@pytest.mark.gpu
def test_two_cards_train_as_one(two_cards: None, train: Train, place: Path) -> None:
    options = [*MLP, "--device", "cuda", "--epochs", "3", "--output"]
    assert train(*options, "one.h5")[0] == 0
    for name in ("two.h5", "again.h5"):
        code, _, err = train(*options, name, "--workers", "2")
        assert (code, err) == (0, "")
    with h5py.File(place / "one.h5") as one, h5py.File(place / "two.h5") as two:
        for name, array in one.items():
            np.testing.assert_allclose(two[name][()], array[()], rtol=1e-3, atol=1e-4)
    assert (place / "two.h5").read_bytes() == (place / "again.h5").read_bytes()


@pytest.mark.gpu
def test_killed_while_the_lead_waits_for_its_card(two_cards: None, place: Path) -> None:
    process = begin(place, "--device", "cuda")
    wait_for((place / CHECKPOINT).exists)
    (worker,) = workers_of(process)
    os.kill(worker, signal.SIGKILL)
    code, _, err = ended(process)
    assert code == 2 and re.fullmatch(r"error: worker 2 of 2 was ended by signal 9 [^\n]*\n", err), err
