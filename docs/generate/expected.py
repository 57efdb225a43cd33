"""Write what was expected of the ladder's later steps, before any of them had run on a card, beside the outcome."""

import json
from collections.abc import Iterator
from pathlib import Path

from app.kernels.registry import find
from app.terminal.text import format_factor, format_ms
from docs.generate.figures import Figures
from docs.generate.tables import markdown

EXPECTED = Path(__file__).parents[1] / "expected.json"  # stays as it was written
NETWORKS = ("lenet5", "fa19")


def expected(figures: Figures) -> str:
    """Write a row for each step: expected and measured time of a layer of each network, and their ratio."""
    head = ["step", "layer", *(part for name in NETWORKS for part in (f"`{name}` expected, ms", "measured, ms", "÷"))]
    return markdown(head, [[*cells] for cells in _rows(figures)], 2)


def _rows(figures: Figures) -> Iterator[list[str]]:
    for row in json.loads(EXPECTED.read_text(encoding="utf-8")):
        step = find(row["operation"], row["name"])
        assert step is not None
        cells = [f"{step.step} {step.name}", row["item"]]
        for network in NETWORKS:
            times, ms = row.get(network), figures.benches[network].row(row["item"], row["name"]).get("ms")
            if times is None or ms is None:
                cells += ["", format_ms(ms), ""]
                continue
            nearest = min(max(ms, min(times)), max(times))
            cells += [" to ".join(f"{time:g}" for time in times), format_ms(ms), format_factor(ms / nearest)]
        yield cells
