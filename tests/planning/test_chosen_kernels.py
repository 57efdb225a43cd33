"""What ``auto`` chooses for every network, precision and architecture, with the reference card's table and without.

chosen_kernels.json holds it, as it was before rows said which kernels are automatic. To make a kernel automatic, or to
ship other times for a card, is to change that file on purpose.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from app.bench.graphs import network_graph
from app.cuda.compiler import ARCHITECTURES
from app.errors import UserError
from app.kernels.problems import ConvPairProblem, LinearPairProblem
from app.network.graph import Graph
from app.planning import matching, tuning
from app.planning.matching import Choices
from app.planning.plan import plan
from app.planning.tuning import REFERENCE_CARDS, Tuning
from app.precision import BY_NAME

CHOSEN = json.loads(Path(__file__).with_name("chosen_kernels.json").read_text(encoding="utf-8"))
STORED = matching.stored_parameters


def _of_pairs_alone(graph: Graph, at: int, heads: Any, problem: Any, input_dtype: str) -> tuple[Any, ...]:
    """Large weights need not be copied to know which kernel serves them; those of pairs are looked at."""
    if isinstance(problem, ConvPairProblem | LinearPairProblem):
        return STORED(graph, at, heads, problem, input_dtype)
    return (None,) * sum(bool(head.layer.parameter_shapes(head.in_shape)) for head in heads)


def _chosen(graph: Graph, arch: str, choices: Choices) -> str:
    try:
        nodes = plan(graph, arch, choices).nodes
    except UserError:
        return "error"
    return " ".join(
        f"{node.name}:{node.variant.name}" + "".join(f",{name}={value}" for name, value in node.settings.items())
        for node in nodes
    )


@pytest.mark.parametrize("network", sorted({name.split()[0] for name in CHOSEN}))
def test_the_chosen_kernels(network: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(matching, "stored_parameters", _of_pairs_alone)
    graph = network_graph(network)
    tables = {arch: tuning.load(card) for arch, card in REFERENCE_CARDS.items()}
    places = [(arch, arch, Tuning()) for arch in ARCHITECTURES]
    places += [(f"{arch}+tuned", arch, table) for arch, table in tables.items()]
    for precision in ("auto", *BY_NAME):
        for fuse, how in ((True, "fused"), (False, "separate")):
            found: dict[str, set[str]] = {}
            for place, arch, table in places:
                found.setdefault(_chosen(graph, arch, Choices(precision, fuse, tuning=table)), set()).add(place)
            expected = {kernels: set(text.split()) for kernels, text in CHOSEN[f"{network} {precision} {how}"].items()}
            assert found == expected, (precision, how)
