"""JSON documents altered at random: refused in one line, or good for all that is made of them."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from app.base.errors import UserError
from app.files.checks import BadValueError, Check, parsed_json
from app.kernels.facts import key
from app.lab.bench.cases import network_items
from app.lab.graphs import network_graph
from app.planning import tuning
from app.planning.tuning import Tuning
from docs.generate import systems
from docs.generate.__main__ import DOCUMENTS
from docs.generate.figures import (
    BENCH,
    FIGURES,
    FILES,
    ONE_IMAGE,
    PEERS,
    PEERS_IN_ONE,
    Figures,
    check_of,
)
from tests.fuzz.mutate import garbled

COUNT = 1000


def taken(rng: random.Random, kinds: Sequence[tuple[Check, Any]], count: int = COUNT) -> Iterator[tuple[int, Any]]:
    """``count`` documents made of good ones of each kind: those that their check takes, with the kind's index.

    Some are taken, some refused.
    """
    refused = 0
    for number in range(count):
        check, good = kinds[number % len(kinds)]
        try:
            found = check(parsed_json(garbled(rng, good)))
        except BadValueError as error:
            assert str(error).isprintable() and len(str(error)) < 500
            refused += 1
        else:
            yield number % len(kinds), found
    assert 0 < refused < count * 19 / 20


def test_figures_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each that is taken, some of the blocks are written."""
    monkeypatch.setattr(systems, "shipped_weights", dict)  # reading the weights takes a second
    rng = random.Random(17)
    good = {name: json.loads((FIGURES / name).read_text()) for name in FILES}
    for bench in (good[name] for name in BENCH.values()):  # fewer rows, so that what matters is hit more often
        for table in bench["tables"]:
            table["rows"] = table["rows"][:4]
        for part in (bench, *bench["batches"]):
            part["totals"] = part["totals"][:6]
    peers = [good[name] for name in (*PEERS.values(), *PEERS_IN_ONE.values(), *ONE_IMAGE.values())]
    for row in (row for document in peers for row in document["rows"]):
        row["tried"] = row["tried"][:1]
        for measured in (row["on_card_ms"], row["end_to_end_ms"]):
            if measured is not None:
                measured["samples"] = measured["samples"][:3]
    names, checked = list(good), {name: check_of(name)(document) for name, document in good.items()}
    blocks = [(document, block) for document in DOCUMENTS for block in document.blocks]
    for kind, found in taken(rng, [(check_of(name), good[name]) for name in names], 160):
        figures = Figures()
        figures.update({**checked, names[kind]: found})
        for document, block in rng.sample(blocks, 3):
            with suppress(UserError):
                document.block(block, figures)


def test_tuning_tables() -> None:
    """By which kernels are chosen."""
    rng = random.Random(16)
    card = tuning.REFERENCE_CARDS["sm_90a"]
    shipped = json.loads((tuning.SHIPPED / tuning.file_name(card)).read_text())
    items = {item.name: item for item in network_items(network_graph("lenet5"))}
    problems = [items[name].problems["float32"] for name in ("conv2", "fc1")]
    few = {**shipped, "entries": {key(problem): shipped["entries"][key(problem)] for problem in problems}}
    for _, table in taken(rng, [(tuning.TABLE, few)]):
        found = Tuning(table["entries"])
        assert rng.random() < 0.5 or all(found.choose(problem, "sm_90a") for problem in problems)
