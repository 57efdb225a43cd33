"""Saved JSON that commands read, altered at random: refused in one line, or good for all that is made of it."""

from __future__ import annotations

import json
import random

from app import tuning
from app.bench.graphs import network_graph
from app.bench.items import network_items
from app.checks import BadValueError, parsed_json
from app.kernels.problems import key
from app.tuning import Tuning
from tests.odd_json import garbled


def test_tuning_tables() -> None:
    """1,000, by which kernels are chosen."""
    rng = random.Random(16)
    card = tuning.REFERENCE_CARDS["sm_90a"]
    shipped = json.loads((tuning.SHIPPED / tuning.file_name(card)).read_text())
    items = {item.name: item for item in network_items(network_graph("lenet5"))}
    problems = [items[name].problems["float32"] for name in ("conv2", "fc1")]
    few = {**shipped, "entries": {key(problem): shipped["entries"][key(problem)] for problem in problems}}
    taken = 0
    for _ in range(1000):
        try:
            found = Tuning(tuning.TABLE(parsed_json(garbled(few, rng)))["entries"])
        except BadValueError as error:
            assert str(error).isprintable() and len(str(error)) < 500
            continue
        taken += 1
        assert rng.random() < 0.5 or all(found.choose(problem, "sm_90a") for problem in problems)
    assert 50 < taken < 950
