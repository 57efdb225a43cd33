"""Random networks on the card: every launch of every plan, element by element, and engines to the same bits.

A failure names its seed; ``python -m tests.support.random_networks --seed N --device cuda`` repeats it alone.
"""

import pytest

from tests.support.random_networks import random_network
from tests.support.random_networks_checked import check_on_card

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", range(300))
def test_every_plan_on_the_card(seed: int) -> None:
    check_on_card(random_network(seed))
