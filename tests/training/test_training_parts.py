"""Test parts of training: random bits, augmentation, optimisers, the schedule, batches per call, and Ctrl-C."""

import os
import signal
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.base import interrupts
from app.files.checks import BadValueError
from app.network.definitions import MLP as NETWORK
from app.training import cpu_trainer, loop
from app.training.cpu_trainer import CpuTrainer, augment_images
from app.training.model import Model, make_training_model
from app.training.optimisers import OPTIMISERS, AdamW, Optimiser, ScheduleStep, Sgd, one_cycle_schedule
from app.training.random_bits import RandomUse, integers_below, random_bits, unit_fractions
from app.training.settings import SETTINGS
from tests.support.shell import listing
from tests.support.training_for_tests import Train, some_settings
from tests.training.test_train_command import MLP, check_failure

ITEMS = np.arange(1000)


def test_random_bits_depend_only_on_their_arguments() -> None:
    one = random_bits(7, RandomUse.AUGMENT, ITEMS, 3, part=1, epoch=2)
    assert one.shape == (1000, 3) and one.dtype == np.uint64
    np.testing.assert_array_equal(
        one[[5, 900]], random_bits(7, RandomUse.AUGMENT, np.array([5, 900]), 3, part=1, epoch=2)
    )
    np.testing.assert_array_equal(one[:, :2], random_bits(7, RandomUse.AUGMENT, ITEMS, 2, part=1, epoch=2))
    others = [
        random_bits(8, RandomUse.AUGMENT, ITEMS, 3, part=1, epoch=2),
        random_bits(7, RandomUse.DROPOUT, ITEMS, 3, part=1, epoch=2),
        random_bits(7, RandomUse.AUGMENT, ITEMS, 3, part=2, epoch=1),
        random_bits(7, RandomUse.AUGMENT, ITEMS + 1000, 3, part=1, epoch=2),
    ]
    everything = np.concatenate([one, *others]).ravel()
    assert len(np.unique(everything)) == everything.size
    assert random_bits(2**63 - 1, RandomUse.ORDER, ITEMS[:1]).dtype == np.uint64


def test_random_bits_never_change() -> None:
    """Checkpoints and kernels depend on these values of random_bits."""
    assert random_bits(1, RandomUse.ORDER, np.array([0, 1]), 1, epoch=1).ravel().tolist() == [
        6323903813334746185,
        12099463737275083340,
    ]


def test_random_numbers_are_uniform() -> None:
    bits = random_bits(3, RandomUse.DROPOUT, ITEMS, 100)
    assert np.abs(np.bincount(integers_below(bits, 5).ravel(), minlength=5) - 20_000).max() < 600
    shares = unit_fractions(bits)
    assert shares.min() >= 0 and shares.max() < 1 and shares.mean() == pytest.approx(0.5, abs=0.005)
    assert abs(np.corrcoef(shares[:, 0], shares[:, 1])[0, 1]) < 0.15


def test_augmentation_does_not_depend_on_the_batch() -> None:
    images = np.random.default_rng(1).integers(0, 256, (20, 2, 6, 9), np.uint8)
    whole_batch = augment_images(images, ITEMS[:20], seed=1, epoch=3, shift=2, flip=True)
    parts = [
        augment_images(images[a : a + 7], ITEMS[a : min(a + 7, 20)], seed=1, epoch=3, shift=2, flip=True)
        for a in (0, 7, 14)
    ]
    np.testing.assert_array_equal(whole_batch, np.concatenate(parts))
    assert whole_batch.dtype == np.uint8 and whole_batch.shape == images.shape
    assert not np.array_equal(whole_batch, augment_images(images, ITEMS[:20], seed=1, epoch=4, shift=2, flip=True))
    assert augment_images(images, ITEMS[:20], seed=1, epoch=3, shift=0, flip=False) is images


def test_exactly_all_shifts_and_flips_occur() -> None:
    image = np.arange(1, 13, dtype=np.uint8).reshape(1, 1, 3, 4)
    found = augment_images(np.repeat(image, 300, axis=0), ITEMS[:300], seed=1, epoch=1, shift=1, flip=True)
    padded = np.pad(image[0, 0], 1)
    shifted = [padded[y : y + 3, x : x + 4] for y in range(3) for x in range(3)]
    expected = {one.tobytes() for part in shifted for one in (part, part[:, ::-1])}
    assert {one.tobytes() for one in found} == expected and len(expected) == 18


def run_updates(optimiser: Optimiser, gradients: list[float], momentum: float = 0.9, rate: float = 0.1) -> list[float]:
    parameters = {"w": np.array([1.0])}
    slots = {slot: {"w": np.zeros(1)} for slot in optimiser.slots}
    values = []
    for step, gradient in enumerate(gradients, 1):
        optimiser.update(parameters, {"w": np.array([gradient])}, slots, ScheduleStep(step, rate, momentum))
        values.append(float(parameters["w"][0]))
    return values


def test_sgd_by_hand() -> None:
    assert run_updates(Sgd(), [1.0, 1.0]) == pytest.approx([0.9, 0.9 - 0.1 * 1.9])
    assert run_updates(Sgd(weight_decay=0.5), [0.0]) == pytest.approx([0.95])


def test_adamw_by_hand() -> None:
    """The first update has the size of the rate, whatever the gradient."""
    assert run_updates(AdamW(), [4.0]) == pytest.approx([0.9]) and run_updates(AdamW(), [-4e-3]) == pytest.approx([1.1])
    mean, square = 0.1 * 0.9 * 2 + 0.1 * -1, 0.001 * 0.999 * 4 + 0.001
    second = 0.9 - 0.1 * mean / (1 - 0.81) / np.sqrt(square / (1 - 0.999**2))
    assert run_updates(AdamW(), [2.0, -1.0])[1] == pytest.approx(second)
    assert run_updates(AdamW(weight_decay=0.5), [4.0]) == pytest.approx([0.85])


def test_biases_do_not_decay() -> None:
    parameters = {"w": np.ones(1), "w_bias": np.ones(1)}
    zeros = {name: np.zeros(1) for name in parameters}
    slots = {"mean": {k: np.zeros(1) for k in zeros}, "square": {k: np.zeros(1) for k in zeros}}
    AdamW(weight_decay=1.0).update(parameters, zeros, slots, ScheduleStep(1, 0.1, 0.9))
    assert (parameters["w"][0], parameters["w_bias"][0]) == (0.9, 1.0)


def test_one_cycle() -> None:
    numbers, rates, momenta = zip(*(one_cycle_schedule(step, 100, 0.5) for step in range(100)), strict=True)
    assert numbers == tuple(range(1, 101))
    assert rates[0] == pytest.approx(0.02) and rates[29] == 0.5 == max(rates) and rates[99] == pytest.approx(2e-6)
    assert list(rates[:30]) == sorted(rates[:30]) and list(rates[29:]) == sorted(rates[29:], reverse=True)
    assert (momenta[0], momenta[29], momenta[99]) == pytest.approx((0.95, 0.85, 0.95))
    for steps in (1, 2, 3, 4, 5):
        assert max(one_cycle_schedule(step, steps, 0.5).rate for step in range(steps)) <= 0.5


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_against_pytorch(name: str, decay: float) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    start = rng.standard_normal(20)
    tensor = torch.nn.Parameter(torch.tensor(start))
    if name == "sgd":
        theirs = torch.optim.SGD([tensor], lr=0.1, momentum=0.9)  # PyTorch's weight decay for it is not decoupled
        decay = 0.0
    else:
        theirs = torch.optim.AdamW([tensor], lr=0.1, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(theirs, 0.1, total_steps=40)
    ours, parameters = OPTIMISERS[name](decay), {"w": start.copy()}
    slots = {slot: {"w": np.zeros(20)} for slot in ours.slots}
    for step in range(40):
        gradient = rng.standard_normal(20)
        tensor.grad = torch.tensor(gradient)
        theirs.step()
        schedule.step() if step < 39 else None
        ours.update(parameters, {"w": gradient}, slots, one_cycle_schedule(step, 40, 0.1))
        np.testing.assert_allclose(parameters["w"], tensor.detach().numpy(), rtol=1e-9, atol=1e-12)


# --- batches per call, and Ctrl-C between the pieces of a batch


@pytest.mark.parametrize(
    ("together", "asked", "done"),
    [(1, [(0, 1), (1, 1), (2, 1), (3, 1)], [16, 16, 16, 4]), (3, [(0, 3), (3, 1)], [48, 4])],
)
def test_train_gets_several_batches_per_call(together: int, asked: list[tuple[int, int]], done: list[int]) -> None:
    settings = some_settings(batch=16)  # 52 images
    trainer, bar = Mock(batches_per_call=together), list[int]()
    trainer.train = Mock(side_effect=lambda batches, *_: [(1.0, 1)] * len(batches))
    trainer.evaluate.return_value, trainer.state.return_value = (1.0, 1), ({}, {})
    start = loop.initial_progress(make_training_model(NETWORK, settings.biases), settings)
    loop.run_epoch(trainer, settings, start, lambda count, *_: bar.append(count))
    found = [(step, len(batches)) for batches, _, step in (call.args for call in trainer.train.call_args_list)]
    assert (found, bar, CpuTrainer.batches_per_call) == (asked, done, 1)


@pytest.mark.parametrize("function", ["compute_gradients", "compute_logits"])
def test_ctrl_c_interrupts_a_batch(function: str, train: Train, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread has ten pieces of a batch, or of the validation images; it computes only the first."""
    calls: list[object] = []
    before = listing(place)
    real, real_handling, noted = getattr(Model, function), interrupts.call_on_interrupt, threading.Event()

    def send_signal_and_call(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        deadline = time.monotonic() + 60
        while not noted.wait(0.1):  # repeated: a signal just before the main thread's wait does not wake it
            assert time.monotonic() < deadline
            os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments, **options)

    def call_and_note(act: Callable[[], object]) -> AbstractContextManager[None]:
        def act_and_note() -> None:
            act()
            noted.set()

        return real_handling(act_and_note)

    monkeypatch.setattr(interrupts, "call_on_interrupt", call_and_note)
    monkeypatch.setattr(cpu_trainer, "PIECE", 2)
    monkeypatch.setattr(cpu_trainer, "core_count", lambda: 1)
    monkeypatch.setattr(Model, function, send_signal_and_call)
    options = ["--batch-size", "20", "--validation", "20"]
    check_failure(train(*MLP, *options), "interrupted; nothing half-written was left")
    assert len(calls) == 1 and listing(place) == before


@pytest.mark.parametrize(("name", "least", "most"), [("seed", 0, 2**63 - 1), ("images", 2, None), ("batch", 1, None)])
def test_bounds_of_settings(name: str, least: int, most: int | None) -> None:
    """Checkpoints and the command line have the same bounds."""
    setting = SETTINGS[name]
    for good in (least, *([] if most is None else [most])):
        assert setting.check(good) == setting.option["type"](str(good)) == good
    for bad in (least - 1, *([] if most is None else [most + 1])):
        with pytest.raises(BadValueError):
            setting.check(bad)
        with pytest.raises(ArgumentTypeError):
            setting.option["type"](str(bad))
