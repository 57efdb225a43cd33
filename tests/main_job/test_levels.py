"""Runs of two levels: what is found, what the note says, and how often samples of one level are taken for two."""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from app.main_job.result import Compared, Outcome, Timing, layer_row, level_notes
from app.main_job.statistics import two_levels
from tests.test_report import CPU, GPU, report

Draw = Callable[[np.random.Generator, int], np.ndarray]


def correlated(share: float) -> Draw:
    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        values = rng.standard_normal((1000, count))
        for at in range(1, count):
            values[:, at] = share * values[:, at - 1] + sqrt(1 - share**2) * values[:, at]
        return values

    return draw


# Distributions of one peak, or none: 1,000 lists of samples.
ONE_LEVEL: dict[str, Draw] = {
    "normal": lambda rng, count: np.exp(0.1 * rng.standard_normal((1000, count))),
    "uniform": lambda rng, count: 1 + rng.random((1000, count)),
    "skewed": lambda rng, count: 1 + 0.5 * rng.exponential(1, (1000, count)),
    "far outliers": lambda rng, count: 1 + 0.1 * rng.pareto(1.5, (1000, count)),
    "correlated": lambda rng, count: np.exp(0.1 * correlated(0.9)(rng, count)),
    "correlated and skewed": lambda rng, count: 1 + 0.1 * np.exp(correlated(0.8)(rng, count)),
    "steps of the clock": lambda rng, count: np.round(9 + rng.standard_normal((1000, count))) * 0.0005,
}


@pytest.mark.parametrize("name", ONE_LEVEL)
def test_one_level_is_rarely_taken_for_two(name: str) -> None:
    """Of 3,000 lists at most 0.3 %."""
    rng = np.random.default_rng(1)
    lists = [samples for count in (20, 30, 50) for samples in ONE_LEVEL[name](rng, count).tolist()]
    assert sum(two_levels(samples) is not None for samples in lists) <= 9


@pytest.mark.parametrize("slow", [4, 10, 16])
def test_two_levels_are_found(slow: int) -> None:
    """0.021 ms and 0.038 ms with 3 % of noise: in at least 99 of 100 lists, and cut between the levels."""
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(100):
        samples = 0.021 * np.exp(0.03 * rng.standard_normal(20))
        samples[:slow] *= 0.038 / 0.021
        groups = two_levels(rng.permutation(samples).tolist())
        found += groups == (sorted(samples[slow:].tolist()), sorted(samples[:slow].tolist()))
    assert found >= 99


@pytest.mark.parametrize(
    "samples",
    [
        [1.0] * 9 + [2.0] * 10,  # too few
        [1.0] * 17 + [2.0] * 3,  # outliers
        [1.0] * 10 + [1.09] * 10,  # near each other
        [0.004] * 10 + [0.005] * 10,  # two steps of the clock
        [0.0] * 10 + [1.0] * 10,  # hidden by the clock's step
        [1.0] * 20,
        [],
    ],
)
def test_what_are_no_two_levels(samples: list[float]) -> None:
    assert two_levels(samples) is None


def notes(outcome: Outcome, **times: object) -> list[str]:
    return [*level_notes(replace(outcome, **times))]  # type: ignore[arg-type]


def test_the_report_says_so_in_text_and_json() -> None:
    alternating = Timing((0.175, 0.312, 0.312) * 10)
    told = report(replace(GPU, end_to_end=alternating))
    note = "end to end: the runs fall into two groups, 0.175 ms (10 runs) and 0.312 ms (20); measure again"
    assert told["notes"] == ["chunks were cut", note]
    assert not notes(GPU) and not notes(CPU)


def test_every_list_of_times_is_looked_at() -> None:
    stepping = Timing((1.0,) * 12 + (2.0,) * 8)
    layer = layer_row("fc1", "naive", 1, stepping, 1, 1)
    compared = Compared("fp16", "float16", stepping, GPU.labels)
    times = {"end_to_end": stepping, "on_card": stepping, "raw_copy": stepping, "layers": (layer,)}
    found = notes(GPU, **times, op_times=(layer,), compared=compared)
    group = "the runs fall into two groups, 1.000 ms (12 runs) and 2.000 ms (8), one group after the other"
    names = ("end to end", "end to end in fp16", "on the card", "raw copy", "fc1", "fc1 alone")
    assert found == [f"{name}: {group}; measure again" for name in names]
    assert notes(CPU, layers=(layer,), op_times=(layer,)) == [f"fc1: {group}; measure again"]


@pytest.mark.parametrize(("ms", "told"), [(0.03, False), (0.031, True), (0.001, False)])
def test_a_pass_that_disagrees_with_its_layers(ms: float, told: bool) -> None:
    layers = tuple(layer_row(name, "naive", 1, Timing((0.01,)), 1, 1) for name in ("fc1", "fc2"))
    found = notes(GPU, on_card=Timing((ms,)), layers=layers)
    assert bool(found) is told
    assert not told or found[0].startswith("on the card: the pass takes 1.6 × as long as its layers timed one by one")
    assert not notes(GPU, on_card=Timing((ms,)), layers=({**layers[0], "ms": 0.0},))
