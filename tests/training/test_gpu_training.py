"""Test training on a GPU: gradients of every network equal the CPU's; repeats and shares of batches."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.network.definitions import NETWORKS, Network
from app.training.cpu_trainer import CpuTrainer
from app.training.model import make_training_model
from app.training.team import SingleProcessTeam, Team
from tests.support.networks_for_tests import ENLARGED, FLAT, ODD, ORDERS, OVERHANG, POOLED, SMOOTH, random_images
from tests.support.training_device import settings_of
from tests.support.training_for_tests import new_job

pytestmark = pytest.mark.gpu
EPOCHS = 7
ALL = pytest.mark.parametrize("network", [*NETWORKS.values(), ODD, SMOOTH, POOLED, OVERHANG, ENLARGED, FLAT, *ORDERS])


class TrainerPair:
    """A CPU trainer and a GPU trainer at the start of the same training."""

    def __init__(self, network: Network, pool: ThreadPoolExecutor, taught: bool = False, **changes: Any) -> None:
        settings = settings_of(network, epochs=EPOCHS, **changes)
        classes = make_training_model(network, settings.biases).classes
        labels = np.random.default_rng(2).integers(0, classes, settings.images).astype(np.uint8)
        job = new_job(settings, random_images(network, settings.images), labels, network=network)
        self.job = replace(job, teacher=job.model.initial_parameters(9)) if taught else job
        self.cpu, self.gpu = CpuTrainer(self.job, pool, SingleProcessTeam()), self.device_trainer()

    def device_trainer(self, team: Team | None = None) -> Any:
        from app.training.gpu.trainer import GpuTrainer

        return GpuTrainer(self.job, team or SingleProcessTeam())

    def batches(self) -> list[np.ndarray]:
        """Return the indices of three batches, of which the last one is smaller."""
        places = np.random.default_rng(4).permutation(self.job.settings.images)
        return [places[:12], places[12:24], places[24:31]]


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def check_close(found: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Check that the norm of the difference is small: rounding decides a few comparisons of ReLU and pooling."""
    assert np.linalg.norm(expected) > 0, name
    assert np.linalg.norm(found - expected) <= 3e-3 * np.linalg.norm(expected), name


@ALL
def test_gradients_equal_the_cpus(network: Network, pool: ThreadPoolExecutor) -> None:
    """Loss, correct answers and gradients of a batch with dropout, shifts and flips equal the CPU's within rounding.

    After one update by SGD with zero slots, the velocity is the gradient.
    """
    pair = TrainerPair(network, pool, optimiser="sgd", weight_decay=0.0, l2=0.0, rate=1.0, shift=2)
    (items, *_) = pair.batches()
    ((loss, correct),) = pair.cpu.train([items], 1, 0)
    assert pair.gpu.train([items], 1, 0) == [(pytest.approx(loss, rel=1e-5), correct)]
    _, slots = pair.gpu.state()
    for name, expected in pair.cpu.state()[1]["velocity"].items():
        check_close(slots["velocity"][name], expected, name)


class LoneMember:
    """A team member whose ``all_reduce`` adds nothing and records the values."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.recorded: list[np.ndarray] = []

    def all_reduce(self, values: Any) -> None:
        import cupy

        self.recorded.append(values.get(stream=cupy.cuda.get_current_stream()))


def test_shares_add_up_to_the_batch(pool: ThreadPoolExecutor) -> None:
    """The values of two members add up to those of one, also in evaluation; those of an empty share are zero."""
    pair = TrainerPair(NETWORKS["mlp"], pool, optimiser="sgd", l2=0.1)
    whole, members = LoneMember(0, 1), [LoneMember(rank, 2) for rank in (0, 1)]
    batches = [pair.batches()[0], pair.batches()[1][:1]]  # the first member's share of the second is empty
    for team in (whole, *members):
        for batch in batches:
            pair.device_trainer(team).train([batch], 1, 0)
        pair.device_trainer(team).evaluate(np.arange(31))
    for expected, *parts in zip(whole.recorded, *(member.recorded for member in members), strict=True):
        np.testing.assert_allclose(sum(parts), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    assert not members[0].recorded[2].any() and members[1].recorded[2].any()


@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_updates_equal_the_cpus(optimiser: str, taught: bool, pool: ThreadPoolExecutor) -> None:
    """Losses, parameters and slots equal the CPU's within rounding after some batches; evaluation changes nothing."""
    some: dict[str, Any] = {"rate": 0.01, "l2": 0.01, "weight_decay": 0.01, "dropout": (("fc2", 0.2),)}
    pair = TrainerPair(NETWORKS["mlp"], pool, taught, optimiser=optimiser, **some)
    for step in (0, 3):
        for (loss, correct), (own_loss, own_correct) in zip(
            pair.cpu.train(pair.batches(), 1, step), pair.gpu.train(pair.batches(), 1, step), strict=True
        ):
            assert (own_loss, own_correct) == (pytest.approx(loss, rel=1e-5), correct)
    parameters, slots = pair.cpu.state()
    own, own_slots = pair.gpu.state()
    for name, array in parameters.items():
        np.testing.assert_allclose(own[name], array, rtol=1e-3, atol=1e-5, err_msg=name)
        for slot in slots:
            scale = np.abs(slots[slot][name]).max()
            np.testing.assert_allclose(own_slots[slot][name], slots[slot][name], rtol=1e-3, atol=1e-4 * scale)
    items = np.arange(35)  # evaluated in pieces, of which the last one is smaller
    expected, right = pair.cpu.evaluate(items)
    assert pair.gpu.evaluate(items) == (pytest.approx(expected, rel=1e-4), right)
    np.testing.assert_equal(pair.gpu.state()[0], own)


@ALL
def test_repeated_training_gives_the_same_bits(network: Network, pool: ThreadPoolExecutor) -> None:
    """The number of batches per call does not matter."""
    pair = TrainerPair(network, pool)
    other = pair.device_trainer()
    losses = pair.gpu.train(pair.batches(), 1, 0)
    pair.gpu.evaluate(np.arange(5))
    assert losses == [other.train([batch], 1, step)[0] for step, batch in enumerate(pair.batches())]
    np.testing.assert_equal(pair.gpu.state()[0], other.state()[0])


def test_another_epoch_uses_other_random_numbers(pool: ThreadPoolExecutor) -> None:
    pair = TrainerPair(NETWORKS["lenet5"], pool)
    other = pair.device_trainer()
    assert pair.gpu.train(pair.batches(), 1, 0) != other.train(pair.batches(), 2, 0)
