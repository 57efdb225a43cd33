"""Compare random networks with an oracle: float64 reference, CPU engine, plans, and runs on a GPU.

A failure names its seed; ``python -m tests.support.random_networks --seed N`` repeats that case, with ``--device cuda``
on a GPU.
"""

import pytest

from app.network.network import KINDS
from tests.support.random_networks import random_network
from tests.support.random_networks_checked import check_on_card, check_on_cpu, check_plans, network_from_chain

SEEDS = range(60)


@pytest.mark.grid
@pytest.mark.parametrize("seed", SEEDS)
def test_reference_and_cpu_agree_with_the_oracle(seed: int) -> None:
    check_on_cpu(random_network(seed))


@pytest.mark.grid
@pytest.mark.parametrize("seed", SEEDS[:40])
def test_plans_agree_with_the_oracle(seed: int) -> None:
    """Plans for an H100 run with packed weights, and with each kernel's NumPy reference in place of the kernel."""
    check_plans(random_network(seed))


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(300))
def test_every_plan_agrees_on_the_gpu(seed: int) -> None:
    """Every launch agrees element by element, and the engines' results agree to the bit."""
    check_on_card(random_network(seed))


def test_random_networks_cover_all_settings() -> None:
    """All layers, incomplete pooling windows, padding, resizing rules, channels and pixel scales occur."""
    texts = [random_network(seed).text for seed in SEEDS]
    assert len(set(texts)) == len(texts)
    for kind in KINDS:
        assert sum(f'type = "{kind}"' in text for text in texts) >= 5, kind
    pooling = ("ceil = true", "\npadding", "extra_padding", "count_padding = true", "stride")
    for setting in (*pooling, "slope", '"course"', '"edge"', "bias = true", "bias = false", "[3, "):
        assert sum(setting in text for text in texts) >= 3, setting
    scales = {network_from_chain(random_network(seed)).pixel_scale for seed in SEEDS}
    assert scales == {1 / 255, 1.0, 0.5}


def test_a_seed_gives_always_the_same_network() -> None:
    first, again = random_network(7), random_network(7)
    assert first.text == again.text and first.arrays.keys() == again.arrays.keys()
    assert all((first.arrays[name] == again.arrays[name]).all() for name in first.arrays)
